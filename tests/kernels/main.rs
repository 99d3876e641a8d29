//! The GPU kernels, compiled for the host: every type and operation against the CPU path bit for
//! bit, plans and exchanges over connections, ends of waits.

#[path = "../../kernels/abi.rs"]
#[allow(dead_code)]
mod abi;
mod arithmetic;
mod data;
mod exchanges;
mod library;
mod plans;
mod reference;
#[path = "../arithmetic/sweeps.rs"]
mod sweeps;
mod wires;

use library::kernels;
use std::collections::HashMap;
use std::mem::offset_of;

/// `(structure, field) -> (offset, bytes)`, of the mirror in Rust.
type Layout = HashMap<(&'static str, &'static str), (usize, usize)>;

/// The size of what a function returns a reference to.
fn bytes_of<S, F>(_: fn(&S) -> &F) -> usize {
    size_of::<F>()
}

macro_rules! mirror {
    ($all:ident; $($c:literal $name:ident: $($field:ident)*;)*) => { $(
        $all.insert(($c, ""), (0, size_of::<abi::$name>()));
        $( $all.insert(
            ($c, stringify!($field)),
            (offset_of!(abi::$name, $field), bytes_of(|s: &abi::$name| &s.$field)),
        ); )*
    )* };
}

fn mirrored() -> Layout {
    let mut all = Layout::new();
    mirror! {
        all;
        "ringcomm_flag" Flag: value unused;
        "ringcomm_report" Report: reason waiting rank peer block step wanted found;
        "ringcomm_control" Control: abort report unused_too;
        "ringcomm_watch" Watch: control stop timeout_ns rank unused;
        "ringcomm_piece" Piece: count first_tile first_end nsources ntargets flags;
        "ringcomm_barrier" Barrier: flags epochs nranks unused watch;
        "ringcomm_reduce_call" ReduceCall: first_piece npieces ntiles unused barrier;
        "ringcomm_reduce_args" ReduceArgs: data_type op parts tile unused calls pieces ends
            scalars call inline_pieces inline_ends inline_scalars;
        "ringcomm_connection" Connection: slots posted freed position;
        "ringcomm_end" End: place peer;
        "ringcomm_span" Span: input output scratch bytes;
        "ringcomm_step" Step: first_span nspans first_end nsources ntargets slices stage scaled
            flags;
        "ringcomm_program" Program: steps ends spans nsteps ticks slice_bytes scratch
            scratch_share lives unused;
        "ringcomm_plan_call" PlanCall: input output scratch scalar programs sends receives npeers
            depth slot_bytes watch;
        "ringcomm_plan_args" PlanArgs: data_type op parts calls call;
        "ringcomm_line" Line: low low_flag high high_flag;
        "ringcomm_epoch" Epoch: epoch arrived unused;
        "ringcomm_oneshot_call" OneshotCall: input output count scalar inboxes epoch lines nranks
            unused watch;
        "ringcomm_oneshot_args" OneshotArgs: data_type op parts collective unused calls call;
        "ringcomm_delay_args" DelayArgs: duration_ns;
    }
    all
}

#[test]
fn the_mirror_in_rust_has_the_layout_of_the_header() {
    let Some(kernels) = kernels() else { return };
    let mirror = mirrored();
    assert_eq!(kernels.layout.len(), mirror.len());
    for field in kernels.layout {
        let names = field.names();
        assert_eq!(mirror.get(&names), Some(&(field.offset, field.bytes)), "{names:?}");
    }
}

#[test]
fn every_kernel_takes_what_its_name_says() {
    let Some(kernels) = kernels() else { return };
    for data_type in ringcomm::types::DataType::ALL {
        let bytes =
            |family| kernels.args_bytes(&format!("ringcomm_{family}_{}", library::kind(data_type)));
        assert_eq!(bytes("reduce"), size_of::<abi::ReduceArgs>());
        assert_eq!(bytes("plan"), size_of::<abi::PlanArgs>());
        assert_eq!(bytes("oneshot"), size_of::<abi::OneshotArgs>());
    }
    assert_eq!(kernels.args_bytes("ringcomm_delay"), size_of::<abi::DelayArgs>());
    assert_eq!(kernels.args_bytes("ringcomm_reduce_f128"), 0);
    // What a driver of any age takes in a launch.
    assert!(size_of::<abi::ReduceArgs>() <= 4096);
}
