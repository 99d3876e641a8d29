//! What a launch says to a kernel: `abi.h` in Rust, whose comments say what each field is.
//!
//! `tests/kernels` compares every size and offset with what a C++ compiler makes of the header.
//! Addresses are those of the device.

pub const THREADS: usize = 512;
pub const BARRIER_BLOCKS: usize = 320;
pub const STEP_ENDS: usize = 128;
pub const PLAN_PEERS: usize = 128;
pub const INLINE_PIECES: usize = 32;
pub const INLINE_ENDS: usize = 256;
pub const INLINE_SCALARS: usize = 16;
pub const NONE: u32 = u32::MAX;
pub const ABORTED: u32 = 1;
pub const LATE: u32 = 2;
pub const FOR_MESSAGE: u32 = 1;
pub const FOR_SLOT: u32 = 2;
pub const FOR_BARRIER: u32 = 3;
pub const FOR_LINES: u32 = 4;
pub const FINISH: u32 = 1;
pub const COPY: u32 = 2;
pub const INPUT: u32 = 0;
pub const OUTPUT: u32 = 1;
pub const SCRATCH: u32 = 2;
pub const PEER: u32 = 3;
pub const LINE_PAYLOAD: usize = 8;
pub const ALL_REDUCE: u32 = 0;
pub const ALL_GATHER: u32 = 1;

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Flag {
    pub value: u64,
    pub unused: [u64; 15],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Report {
    pub reason: u32,
    pub waiting: u32,
    pub rank: u32,
    pub peer: u32,
    pub block: u32,
    pub step: u32,
    pub wanted: u64,
    pub found: u64,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct Control {
    pub abort: [Flag; BARRIER_BLOCKS],
    pub report: Report,
    pub unused_too: [u64; 10],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Watch {
    pub control: u64,
    pub stop: u64,
    pub timeout_ns: u64,
    pub rank: u32,
    pub unused: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Piece {
    pub count: u64,
    pub first_tile: u32,
    pub first_end: u32,
    pub nsources: u16,
    pub ntargets: u16,
    pub flags: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Barrier {
    pub flags: u64,
    pub epochs: u64,
    pub nranks: u32,
    pub unused: u32,
    pub watch: Watch,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct ReduceCall {
    pub first_piece: u32,
    pub npieces: u32,
    pub ntiles: u32,
    pub unused: u32,
    pub barrier: Barrier,
}

#[derive(Clone, Copy, Debug)]
#[repr(C)]
pub struct ReduceArgs {
    pub data_type: i32,
    pub op: i32,
    pub parts: u64,
    pub tile: u32,
    pub unused: u32,
    pub calls: u64,
    pub pieces: u64,
    pub ends: u64,
    pub scalars: u64,
    pub call: ReduceCall,
    pub inline_pieces: [Piece; INLINE_PIECES],
    pub inline_ends: [u64; INLINE_ENDS],
    pub inline_scalars: [f64; INLINE_SCALARS],
}

impl Default for ReduceArgs {
    /// Nothing to do, and nothing scaled.
    fn default() -> ReduceArgs {
        ReduceArgs {
            data_type: 0,
            op: 0,
            parts: 0,
            tile: 0,
            unused: 0,
            calls: 0,
            pieces: 0,
            ends: 0,
            scalars: 0,
            call: ReduceCall::default(),
            inline_pieces: [Piece::default(); INLINE_PIECES],
            inline_ends: [0; INLINE_ENDS],
            inline_scalars: [1.0; INLINE_SCALARS],
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Connection {
    pub slots: u64,
    pub posted: u64,
    pub freed: u64,
    pub position: u64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct End {
    pub place: u32,
    pub peer: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Span {
    pub input: u64,
    pub output: u64,
    pub scratch: u64,
    pub bytes: u64,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Step {
    pub first_span: u32,
    pub nspans: u32,
    pub first_end: u32,
    pub nsources: u16,
    pub ntargets: u16,
    pub slices: u32,
    pub stage: u32,
    pub scaled: u32,
    pub flags: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Program {
    pub steps: u64,
    pub ends: u64,
    pub spans: u64,
    pub nsteps: u32,
    pub ticks: u32,
    pub slice_bytes: u64,
    pub scratch: u64,
    pub scratch_share: u64,
    pub lives: u32,
    pub unused: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PlanCall {
    pub input: u64,
    pub output: u64,
    pub scratch: u64,
    pub scalar: f64,
    pub programs: u64,
    pub sends: u64,
    pub receives: u64,
    pub npeers: u32,
    pub depth: u32,
    pub slot_bytes: u64,
    pub watch: Watch,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct PlanArgs {
    pub data_type: i32,
    pub op: i32,
    pub parts: u64,
    pub calls: u64,
    pub call: PlanCall,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Line {
    pub low: u32,
    pub low_flag: u32,
    pub high: u32,
    pub high_flag: u32,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct Epoch {
    pub epoch: u32,
    pub arrived: u32,
    pub unused: [u64; 15],
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct OneshotCall {
    pub input: u64,
    pub output: u64,
    pub count: u64,
    pub scalar: f64,
    pub inboxes: u64,
    pub epoch: u64,
    pub lines: u64,
    pub nranks: u32,
    pub unused: u32,
    pub watch: Watch,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct OneshotArgs {
    pub data_type: i32,
    pub op: i32,
    pub parts: u64,
    pub collective: u32,
    pub unused: u32,
    pub calls: u64,
    pub call: OneshotCall,
}

#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub struct DelayArgs {
    pub duration_ns: u64,
}
