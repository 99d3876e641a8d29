//! How calls on device memory run, and the words that say so.

/// How a communicator's calls on device memory run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::communicator::gpu) enum GpuDataPath {
    /// One kernel per call, on memory that all devices of the process reach.
    Fused,
    /// The same; kernels that wait for each other failed their trial.
    FusedOnly,
    /// One kernel per call, on memory that other processes have opened.
    FusedByIpc,
    /// The same; a call has gone through the host instead.
    FusedByIpcOrStaged,
    /// Through buffers of the host.
    Staged(StagedBecause),
}

/// Why calls on device memory go through buffers of the host.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::communicator::gpu) enum StagedBecause {
    NoKernels,
    NoSharedMemory,
    NoPeerAccess,
    ProbeFailed,
    /// The ranks are on one host and share no device memory.
    OneHost,
    SeveralHosts,
}

impl GpuDataPath {
    /// In words, of at most 31 bytes.
    pub fn name(self) -> &'static str {
        match self {
            GpuDataPath::Fused => "gpu/fused",
            GpuDataPath::FusedOnly => "gpu/fused (a trial failed)",
            GpuDataPath::FusedByIpc => "gpu/fused by ipc",
            GpuDataPath::FusedByIpcOrStaged => "gpu/fused by ipc, or gpu/staged",
            GpuDataPath::Staged(StagedBecause::NoKernels) => "gpu/staged (no kernels)",
            GpuDataPath::Staged(StagedBecause::NoSharedMemory) => "gpu/staged (no shared memory)",
            GpuDataPath::Staged(StagedBecause::NoPeerAccess) => "gpu/staged (no peer access)",
            GpuDataPath::Staged(StagedBecause::ProbeFailed) => "gpu/staged (a probe failed)",
            GpuDataPath::Staged(StagedBecause::OneHost) => "gpu/staged",
            GpuDataPath::Staged(StagedBecause::SeveralHosts) => "gpu/staged, then net",
        }
    }
}
