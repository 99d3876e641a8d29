//! The weak names: `ncclX` beside each `pncclX`, as NCCL has them, so that a tool which defines
//! `ncclX` itself reaches the library as `pncclX`.
//!
//! Rust has no weak definitions; the assembler does. Each name jumps to its twin.

macro_rules! weak_names {
    ($($function:ident)*) => {
        /// Every function, without its `nccl`.
        pub const FUNCTIONS: &[&str] = &[$(stringify!($function)),*];
        $(weak_name!($function);)*
    };
}

#[cfg(target_arch = "x86_64")]
macro_rules! weak_name {
    ($function:ident) => {
        weak_name!($function, "jmp pnccl", "@PLT");
    };
    ($function:ident, $jump:literal, $by:literal) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.nccl", stringify!($function), ",\"ax\",@progbits"),
            concat!(".weak nccl", stringify!($function)),
            concat!(".type nccl", stringify!($function), ",@function"),
            concat!("nccl", stringify!($function), ":"),
            concat!($jump, stringify!($function), $by),
            concat!(".size nccl", stringify!($function), ", . - nccl", stringify!($function)),
            ".popsection",
        );
    };
}

#[cfg(target_arch = "aarch64")]
macro_rules! weak_name {
    ($function:ident) => {
        std::arch::global_asm!(
            concat!(".pushsection .text.nccl", stringify!($function), ",\"ax\",@progbits"),
            concat!(".weak nccl", stringify!($function)),
            concat!(".type nccl", stringify!($function), ",@function"),
            concat!("nccl", stringify!($function), ":"),
            concat!("b pnccl", stringify!($function)),
            concat!(".size nccl", stringify!($function), ", . - nccl", stringify!($function)),
            ".popsection",
        );
    };
}

weak_names! {
    AllGather AllGatherConfig AllReduce AllReduceConfig AlltoAll AlltoAllConfig Bcast Broadcast
    BroadcastConfig CommAbort CommCount CommCuDevice CommDeregister CommDestroy CommFinalize
    CommGetAsyncError CommGetUniqueId CommGrow CommInitAll CommInitRank CommInitRankConfig
    CommInitRankScalable CommMemStats CommQueryProperties CommRegister CommResume CommRevoke
    CommShrink CommSplit CommSuspend CommUserRank CommWindowDeregister CommWindowRegister
    DevCommCreate DevCommDestroy Gather GatherConfig GetCftDeviceLeInfo GetErrorString GetLastError
    GetLsaDevicePointer GetLsaMultimemDevicePointer GetMultimemDeviceLeInfo
    GetMultimemDevicePointer GetPeerDeviceLeInfo GetPeerDevicePointer GetUniqueId GetVersion
    GinBarrierCreateRequirement GinInboxA2ACreateRequirement GinOutboxCreateRequirement GroupEnd
    GroupSimulateEnd GroupStart LLA2ACalcSlots LLA2ACreateRequirement LsaBarrierCreateRequirement
    MemAlloc MemFree ParamBind ParamDumpAll ParamGet ParamGetAllParameterKeys ParamGetI16
    ParamGetI32 ParamGetI64 ParamGetI8 ParamGetParameter ParamGetStr ParamGetU16 ParamGetU32
    ParamGetU64 ParamGetU8 PutSignal Recv RedOpCreatePreMulSum RedOpDestroy Reduce ReduceConfig
    ReduceScatter ReduceScatterConfig ResetDebugInit Scatter ScatterConfig Send SetEncryption Signal
    TeamCft TeamCftMultimem TeamLsa TeamRail TeamRankToLsa TeamRankToWorld TeamWorld WaitSignal
    WinGetUserPtr
}

/// Tells the linker that the weak names are exported: Rust lists the names of its own exported
/// items for it, where this one is a pattern. The item itself stays inside.
#[unsafe(export_name = "nccl*")]
static EXPORTED: u8 = 0;
std::arch::global_asm!(".hidden \"nccl*\"");
