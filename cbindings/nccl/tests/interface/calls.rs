//! Collectives, messages, reductions with a factor, each on the values that NCCL documents.

use crate::ranks::*;
use ringcomm_nccl::collectives::*;
use ringcomm_nccl::collectives_config::*;
use ringcomm_nccl::group::*;
use ringcomm_nccl::query::*;
use ringcomm_nccl::types::*;
use std::ffi::c_void;
use std::ptr::null_mut;

const RANKS: i32 = 3;
const N: usize = 1000;

fn own(rank: i32) -> Vec<f32> {
    (0..N).map(|at| (rank + 1) as f32 * (at % 7) as f32).collect()
}

fn from(buffer: &[f32]) -> *const c_void {
    buffer.as_ptr().cast()
}

fn to(buffer: &mut [f32]) -> *mut c_void {
    buffer.as_mut_ptr().cast()
}

#[test]
fn reductions_have_the_serial_values() {
    type Combine = fn(f32, f32) -> f32;
    let ops: [(ncclRedOp_t, Combine); 4] = [
        (ncclSum, |a, b| a + b),
        (ncclProd, |a, b| a * b),
        (ncclMax, f32::max),
        (ncclMin, f32::min),
    ];
    with_ranks(RANKS, |rank, comm| {
        let input = own(rank);
        for (op, combine) in ops {
            let wanted: Vec<f32> =
                (0..N).map(|at| (0..RANKS).map(|r| own(r)[at]).reduce(combine).unwrap()).collect();
            let mut output = vec![-1.0; N];
            // SAFETY: the buffers have N elements.
            unsafe {
                let (send, recv) = (from(&input), to(&mut output));
                ok(pncclAllReduce(send, recv, N, ncclFloat32, op, comm, null_mut()));
                assert_eq!(output, wanted);
                output.fill(-1.0);
                let recv = if rank == 1 { to(&mut output) } else { null_mut() };
                ok(pncclReduce(send, recv, N, ncclFloat32, op, 1, comm, null_mut()));
            }
            assert_eq!(output, if rank == 1 { wanted } else { vec![-1.0; N] });
        }
        // In place, and the average.
        let mut both = input.clone();
        // SAFETY: as above.
        unsafe {
            let send = both.as_ptr().cast();
            ok(pncclAllReduce(send, to(&mut both), N, ncclFloat, ncclAvg, comm, null_mut()));
        }
        assert_eq!(both, (0..N).map(|at| 2.0 * (at % 7) as f32).collect::<Vec<_>>());
    });
}

#[test]
fn blocks_go_where_nccl_puts_them() {
    with_ranks(RANKS, |rank, comm| {
        let (ranks, me) = (RANKS as usize, rank as usize);
        let block = |from: usize, to: usize| vec![(10 * from + to) as f32; N];
        let mine: Vec<f32> = (0..ranks).flat_map(|to| block(me, to)).collect();
        let mut all = vec![0.0; ranks * N];
        let mut one = vec![0.0; N];
        // SAFETY: the buffers have as many blocks as each call takes.
        unsafe {
            ok(pncclAllGather(from(&mine[..N]), to(&mut all), N, ncclFloat, comm, null_mut()));
            assert_eq!(all, (0..ranks).flat_map(|from| block(from, 0)).collect::<Vec<_>>());
            ok(pncclAlltoAll(from(&mine), to(&mut all), N, ncclFloat, comm, null_mut()));
            assert_eq!(all, (0..ranks).flat_map(|from| block(from, me)).collect::<Vec<_>>());
            let (send, recv) = (from(&mine), to(&mut one));
            ok(pncclReduceScatter(send, recv, N, ncclFloat, ncclSum, comm, null_mut()));
            assert_eq!(one, vec![(10 * 3 + 3 * me) as f32; N]);
            all.fill(-1.0);
            ok(pncclGather(from(&mine[..N]), to(&mut all), N, ncclFloat, 2, comm, null_mut()));
            let gathered = (0..ranks).flat_map(|from| block(from, 0)).collect();
            assert_eq!(all, if rank == 2 { gathered } else { vec![-1.0; ranks * N] });
            ok(pncclScatter(from(&mine), to(&mut one), N, ncclFloat, 0, comm, null_mut()));
            assert_eq!(one, block(0, me));
            ok(pncclBroadcast(from(&mine), to(&mut one), N, ncclFloat, 1, comm, null_mut()));
            assert_eq!(one, block(1, 0));
            let mut both = mine[..N].to_vec();
            ok(pncclBcast(to(&mut both), N, ncclFloat, 2, comm, null_mut()));
            assert_eq!(both, block(2, 0));
        }
    });
}

#[test]
fn a_call_with_a_configuration_is_the_call() {
    with_ranks(2, |_, comm| {
        // SAFETY: the structure is numbers and pointers.
        let mut config: ncclCollConfig_t = unsafe { std::mem::zeroed() };
        (config.size, config.magic) = (size_of::<ncclCollConfig_t>(), NCCL_API_MAGIC);
        config.version = NCCL_VERSION_CODE as u32;
        let (one, mut sum) = ([1.0f32; 8], [0.0f32; 8]);
        // SAFETY: the buffers have 8 elements, and their halves 4.
        unsafe {
            let (send, recv) = (from(&one), to(&mut sum));
            for config in [&raw const config, std::ptr::null()] {
                let (no, f) = (null_mut(), ncclFloat);
                ok(pncclAllReduceConfig(send, recv, 8, f, ncclSum, comm, no, config));
                assert_eq!(sum, [2.0; 8]);
                ok(pncclReduceConfig(send, recv, 8, f, ncclSum, 0, comm, no, config));
                ok(pncclBroadcastConfig(send, recv, 8, f, 0, comm, no, config));
                ok(pncclAllGatherConfig(send, recv, 4, f, comm, no, config));
                ok(pncclReduceScatterConfig(send, recv, 4, f, ncclMax, comm, no, config));
                ok(pncclAlltoAllConfig(send, recv, 4, f, comm, no, config));
                ok(pncclGatherConfig(send, recv, 4, f, 0, comm, no, config));
                ok(pncclScatterConfig(send, recv, 4, f, 0, comm, no, config));
            }
            config.magic = 0;
            let wrong =
                pncclAllReduceConfig(send, recv, 8, ncclFloat, ncclSum, comm, null_mut(), &config);
            refused(wrong, ncclInvalidArgument, "NCCL_COLLCONFIG_INITIALIZER");
        }
    });
}

#[test]
fn every_type_of_nccls_is_summed() {
    // Two ones of each type, and their sum: one byte pattern for little-endian machines.
    let types: [(ncclDataType_t, &[u8], &[u8]); 12] = [
        (ncclInt8, &[1], &[2]),
        (ncclUint8, &[1], &[2]),
        (ncclInt32, &[1, 0, 0, 0], &[2, 0, 0, 0]),
        (ncclUint32, &[1, 0, 0, 0], &[2, 0, 0, 0]),
        (ncclInt64, &[1, 0, 0, 0, 0, 0, 0, 0], &[2, 0, 0, 0, 0, 0, 0, 0]),
        (ncclUint64, &[1, 0, 0, 0, 0, 0, 0, 0], &[2, 0, 0, 0, 0, 0, 0, 0]),
        (ncclFloat16, &[0, 0x3c], &[0, 0x40]),
        (ncclFloat32, &[0, 0, 0x80, 0x3f], &[0, 0, 0, 0x40]),
        (ncclFloat64, &[0, 0, 0, 0, 0, 0, 0xf0, 0x3f], &[0, 0, 0, 0, 0, 0, 0, 0x40]),
        (ncclBfloat16, &[0x80, 0x3f], &[0, 0x40]),
        (ncclFloat8e4m3, &[0x38], &[0x40]),
        (ncclFloat8e5m2, &[0x3c], &[0x40]),
    ];
    with_ranks(2, |_, comm| {
        for (kind, one, two) in types {
            let mut sum = vec![0u8; one.len()];
            let (send, recv) = (one.as_ptr().cast(), sum.as_mut_ptr().cast());
            // SAFETY: the buffers have one element.
            ok(unsafe { pncclAllReduce(send, recv, 1, kind, ncclSum, comm, null_mut()) });
            assert_eq!(sum, two, "type {kind}");
        }
    });
}

#[test]
fn messages_cross_in_a_group() {
    with_ranks(RANKS, |rank, comm| {
        let (next, before) = ((rank + 1) % RANKS, (rank + RANKS - 1) % RANKS);
        let (mine, mut theirs) = (own(rank), vec![0.0; N]);
        ok(pncclGroupStart());
        // SAFETY: the buffers stay until the group's end.
        unsafe {
            ok(pncclSend(from(&mine), N, ncclFloat, next, comm, null_mut()));
            ok(pncclRecv(to(&mut theirs), N, ncclFloat, before, comm, null_mut()));
        }
        ok(pncclGroupEnd());
        assert_eq!(theirs, own(before));
    });
}

#[test]
fn a_reduction_with_a_factor_multiplies_first() {
    with_ranks(2, |rank, comm| {
        for residence in [ncclScalarHostImmediate, ncclScalarDevice] {
            let mut factor = if rank == 0 { 0.5f32 } else { 2.0 };
            let (mut op, scalar) = (-1, (&raw mut factor).cast());
            let (input, mut sum) = ([4.0f32; 4], [0.0f32; 4]);
            // SAFETY: the places are locals, and the scalar lives until the operation is destroyed.
            unsafe {
                ok(pncclRedOpCreatePreMulSum(&mut op, scalar, ncclFloat, residence, comm));
                let (send, recv) = (from(&input), to(&mut sum));
                ok(pncclAllReduce(send, recv, 4, ncclFloat, op, comm, null_mut()));
                assert_eq!(sum, [10.0; 4]);
                ok(pncclRedOpDestroy(op, comm));
                refused(pncclRedOpDestroy(op, comm), ncclInvalidArgument, "");
                let wrong = pncclRedOpDestroy(ncclSum, comm);
                refused(wrong, ncclInvalidArgument, "ncclRedOpDestroy: a built-in operation");
            }
        }
    });
}

#[test]
fn questions_have_their_answers() {
    with_ranks(2, |rank, comm| {
        assert_eq!(rank_of(comm), (rank, 2));
        let (mut device, mut version, mut bytes) = (-2, 0, 0);
        // SAFETY: the places are locals.
        unsafe {
            ok(pncclCommCuDevice(comm, &mut device));
            assert_eq!(device, -1);
            ok(pncclGetVersion(&mut version));
            assert_eq!(version, NCCL_VERSION_CODE);
            ok(pncclCommMemStats(comm, ncclStatGpuMemTotal, &mut bytes));
            assert!(bytes > 0);
            refused(
                pncclCommMemStats(comm, 9, &mut bytes),
                ncclInvalidArgument,
                "9 is no statistic",
            );
            let mut properties: ncclCommProperties_t = std::mem::zeroed();
            properties.size = size_of::<ncclCommProperties_t>();
            properties.magic = NCCL_API_MAGIC;
            ok(pncclCommQueryProperties(comm, &mut properties));
            assert_eq!((properties.rank, properties.nRanks), (rank, 2));
            assert!(properties.hostRmaSupport && !properties.deviceApiSupport);
        }
    });
}

#[test]
fn the_documentation_has_every_function_and_variable() {
    let page = include_str!("../../../../docs/nccl.md");
    for function in ringcomm_nccl::twins::FUNCTIONS {
        assert!(page.contains(&format!("`nccl{function}`")), "nccl{function}");
    }
    for (variable, _) in ringcomm_nccl::environment::table::VARIABLES {
        assert!(page.contains(&format!("`{variable}`")), "NCCL_{variable}");
    }
}
