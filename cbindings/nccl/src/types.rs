//! NCCL's types, numbers and structures, by the names of its header.
//!
//! C enums are plain numbers here: a program can put any number there.

use std::ffi::{c_char, c_int, c_uint, c_void};

/// The release whose interface this is.
pub const NCCL_VERSION_CODE: c_int = 23203;

pub const NCCL_UNIQUE_ID_BYTES: usize = 128;
pub const NCCL_CONFIG_UNDEF_INT: c_int = c_int::MIN;
pub const NCCL_SPLIT_NOCOLOR: c_int = -1;
pub const NCCL_API_MAGIC: c_uint = 0xcafe_beef;
/// Of `ncclSimInfo_t`.
pub const SIM_INFO_MAGIC: c_uint = 0x7468_5283;
pub const NCCL_UNDEF_FLOAT: f32 = -1.0;

pub const NCCL_WIN_DEFAULT: c_int = 0;
pub const NCCL_WIN_COLL_SYMMETRIC: c_int = 1;
pub const NCCL_WIN_STRICT_ORDERING: c_int = 2;
pub const NCCL_WIN_GIN_ONLY: c_int = 4;
pub const NCCL_WIN_CFT_COUNTED: c_int = 8;
pub const NCCL_WIN_REQUIRED_ALIGNMENT: usize = 4096;

pub const NCCL_CTA_POLICY_DEFAULT: c_int = 0;
pub const NCCL_CTA_POLICY_EFFICIENCY: c_int = 1;
pub const NCCL_CTA_POLICY_ZERO: c_int = 2;
pub const NCCL_SHRINK_DEFAULT: c_int = 0;
pub const NCCL_SHRINK_ABORT: c_int = 1;
pub const NCCL_REVOKE_DEFAULT: c_int = 0;
pub const NCCL_SUSPEND_MEM: c_int = 1;

pub type ncclResult_t = c_int;
pub const ncclSuccess: ncclResult_t = 0;
pub const ncclUnhandledCudaError: ncclResult_t = 1;
pub const ncclSystemError: ncclResult_t = 2;
pub const ncclInternalError: ncclResult_t = 3;
pub const ncclInvalidArgument: ncclResult_t = 4;
pub const ncclInvalidUsage: ncclResult_t = 5;
pub const ncclRemoteError: ncclResult_t = 6;
pub const ncclInProgress: ncclResult_t = 7;
pub const ncclTimeout: ncclResult_t = 8;

pub type ncclRedOp_t = c_int;
pub const ncclSum: ncclRedOp_t = 0;
pub const ncclProd: ncclRedOp_t = 1;
pub const ncclMax: ncclRedOp_t = 2;
pub const ncclMin: ncclRedOp_t = 3;
pub const ncclAvg: ncclRedOp_t = 4;

pub type ncclDataType_t = c_int;
pub const ncclInt8: ncclDataType_t = 0;
pub const ncclChar: ncclDataType_t = 0;
pub const ncclUint8: ncclDataType_t = 1;
pub const ncclInt32: ncclDataType_t = 2;
pub const ncclInt: ncclDataType_t = 2;
pub const ncclUint32: ncclDataType_t = 3;
pub const ncclInt64: ncclDataType_t = 4;
pub const ncclUint64: ncclDataType_t = 5;
pub const ncclFloat16: ncclDataType_t = 6;
pub const ncclHalf: ncclDataType_t = 6;
pub const ncclFloat32: ncclDataType_t = 7;
pub const ncclFloat: ncclDataType_t = 7;
pub const ncclFloat64: ncclDataType_t = 8;
pub const ncclDouble: ncclDataType_t = 8;
pub const ncclBfloat16: ncclDataType_t = 9;
pub const ncclFloat8e4m3: ncclDataType_t = 10;
pub const ncclFloat8e5m2: ncclDataType_t = 11;

pub type ncclScalarResidence_t = c_int;
pub const ncclScalarDevice: ncclScalarResidence_t = 0;
pub const ncclScalarHostImmediate: ncclScalarResidence_t = 1;

pub type ncclCommMemStat_t = c_int;
pub const ncclStatGpuMemSuspend: ncclCommMemStat_t = 0;
pub const ncclStatGpuMemSuspended: ncclCommMemStat_t = 1;
pub const ncclStatGpuMemPersist: ncclCommMemStat_t = 2;
pub const ncclStatGpuMemTotal: ncclCommMemStat_t = 3;

pub type ncclHostCftMode_t = c_int;
pub const ncclHostCftDefault: ncclHostCftMode_t = NCCL_CONFIG_UNDEF_INT;
pub const ncclHostCftEnable: ncclHostCftMode_t = 1;
pub const ncclHostCftDisable: ncclHostCftMode_t = 2;
pub const ncclHostCftFallback: ncclHostCftMode_t = 3;

pub type ncclNvlsHostMode_t = c_int;
pub const ncclNvlsHostModeDefault: ncclNvlsHostMode_t = NCCL_CONFIG_UNDEF_INT;
pub const ncclNvlsHostModeEnable: ncclNvlsHostMode_t = 0;
pub const ncclNvlsHostModeDisableTransport: ncclNvlsHostMode_t = 1;
pub const ncclNvlsHostModeDisableSymmetricMultimem: ncclNvlsHostMode_t = 2;
pub const ncclNvlsHostModeDisable: ncclNvlsHostMode_t = c_int::MAX;

pub type ncclEncryptionMode_t = c_int;
pub const NCCL_ENCRYPTION_MODE_NONE: ncclEncryptionMode_t = 0;
pub const NCCL_ENCRYPTION_MODE_PSK: ncclEncryptionMode_t = 1;

/// What a handle points at: nothing that anybody follows.
#[repr(C)]
pub struct ncclComm {
    _nothing: [u8; 0],
}
pub type ncclComm_t = *mut ncclComm;

#[repr(C)]
pub struct ncclWindow_vidmem {
    _nothing: [u8; 0],
}
pub type ncclWindow_t = *mut ncclWindow_vidmem;

#[repr(C)]
pub struct ncclParamHandle {
    _nothing: [u8; 0],
}
pub type ncclParamHandle_t = *mut ncclParamHandle;

#[repr(C)]
pub struct CUstream_st {
    _nothing: [u8; 0],
}
pub type cudaStream_t = *mut CUstream_st;

#[repr(C)]
pub struct CUevent_st {
    _nothing: [u8; 0],
}
pub type cudaEvent_t = *mut CUevent_st;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclUniqueId {
    pub internal: [c_char; NCCL_UNIQUE_ID_BYTES],
}

/// Fields are added at the end: `size` says how many a program knows.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclConfig_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub blocking: c_int,
    pub cgaClusterSize: c_int,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub netName: *const c_char,
    pub splitShare: c_int,
    pub trafficClass: c_int,
    pub commName: *const c_char,
    pub collnetEnable: c_int,
    pub CTAPolicy: c_int,
    pub shrinkShare: c_int,
    pub nvlsCTAs: c_int,
    pub nChannelsPerNetPeer: c_int,
    pub nvlinkCentricSched: c_int,
    pub graphUsageMode: c_int,
    pub numRmaCtx: c_int,
    pub maxP2pPeers: c_int,
    pub graphStreamOrdering: c_int,
    pub launchOrderImplicit: c_int,
    pub numRmaSig: c_int,
    pub rmaEagerInit: c_int,
    pub hostCftMode: c_int,
    pub nvlsHostMode: c_int,
}

#[repr(C)]
pub struct ncclConfigExtKey {
    pub vendorId: c_int,
    pub optionId: c_int,
}

#[repr(C)]
pub union ncclConfigExtValue {
    pub i: c_int,
    pub s: *const c_char,
    pub raw: *mut c_void,
}

#[repr(C)]
pub struct ncclConfigExt {
    pub next: *mut ncclConfigExt,
    pub key: ncclConfigExtKey,
    pub val: ncclConfigExtValue,
}
pub type ncclConfigExt_t = ncclConfigExt;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclCollConfig_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub ext: *mut ncclConfigExt_t,
    pub minCTAs: c_int,
    pub maxCTAs: c_int,
    pub nvlsCTAs: c_int,
    pub cgaClusterSize: c_int,
    pub algSelection: *const c_char,
    pub forceAlgSelection: c_int,
    pub CTAPolicy: c_int,
    pub userProfilerTag: u64,
    pub launchCompletionEvent: cudaEvent_t,
}

#[repr(C)]
pub struct ncclSimInfo_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub estimatedTime: f32,
}

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclWaitSignalDesc_t {
    pub opCnt: c_int,
    pub peer: c_int,
    pub sigIdx: c_int,
    pub ctx: c_int,
}

#[repr(C)]
pub struct ncclEncryptionConfig_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub mode: c_int,
    pub psk: *const c_char,
}

pub type ncclGinType_t = c_int;
pub type ncclGinConnectionType_t = c_int;

#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclCommProperties_t {
    pub size: usize,
    pub magic: c_uint,
    pub version: c_uint,
    pub rank: c_int,
    pub nRanks: c_int,
    pub cudaDev: c_int,
    pub nvmlDev: c_int,
    pub deviceApiSupport: bool,
    pub multimemSupport: bool,
    pub ginType: ncclGinType_t,
    pub nLsaTeams: c_int,
    pub hostRmaSupport: bool,
    pub railedGinType: ncclGinType_t,
    pub commHash: u64,
    pub ginMinStride: c_int,
    pub ginConnectionType: ncclGinConnectionType_t,
    pub ginSupport: [bool; 64],
    pub devCommRuntimeVersionSize: usize,
    pub cftSupport: bool,
    pub cftMulticastSupport: bool,
    pub cftCountedSupport: bool,
}

pub type ncclCftTeamMode_t = c_int;

/// A name of multicast memory, of which there is none.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclMultimemHandle_t {
    pub mcBasePtr: *mut c_void,
}

/// Ranks at equal distances: `rank` is this one's place among `nRanks`.
#[derive(Clone, Copy)]
#[repr(C)]
pub struct ncclTeam_t {
    pub nRanks: c_int,
    pub rank: c_int,
    pub stride: c_int,
}
