//! The C functions on devices.
#![allow(non_snake_case)] // C names are spelled as a C program spells them.

use super::gate::{child, is_child, scratch};
use super::here::is_on_fake;
use super::streams::Floats;
use super::{Bench, ndevices};
use ringcomm::ffi::calls::collective::*;
use ringcomm::ffi::calls::group::*;
use ringcomm::ffi::calls::red_op::*;
use ringcomm::ffi::calls::stream::*;
use ringcomm::ffi::comm::explain::*;
use ringcomm::ffi::comm::lifecycle::*;
use ringcomm::ffi::comm::query::*;
use ringcomm::ffi::types::ringResult_t::*;
use ringcomm::ffi::types::*;
use std::ffi::{CStr, c_int};
use std::ptr::null_mut;

const SUM: RawRedOp = RawRedOp(ringRedOp_t::ringSum as i32);
const ALL_REDUCE: RawCollective = RawCollective(ringCollective_t::ringCollAllReduce as i32);
const FLOAT: RawDataType = RawDataType(ringDataType_t::ringFloat32 as i32);

fn last_error() -> String {
    // SAFETY: a C string that lives until this thread asks again.
    unsafe { CStr::from_ptr(ringGetLastError(null_mut())) }.to_string_lossy().into_owned()
}

#[track_caller]
fn succeeds(result: ringResult_t) {
    assert_eq!(result, ringSuccess, "{}", last_error());
}

/// Two ranks on the first device.
fn init_all() -> [ringComm_t; 2] {
    let (mut ranks, devices) = ([null_mut(); 2], [0; 2]);
    // SAFETY: as many places and devices as ranks.
    succeeds(unsafe { ringCommInitAll(ranks.as_mut_ptr(), 2, devices.as_ptr()) });
    ranks
}

fn sum(floats: &Floats, count: usize, comm: ringComm_t, stream: ringStream_t) -> ringResult_t {
    let memory = floats.memory.pointer().cast();
    // SAFETY: the caller's memory has the elements.
    unsafe { ringAllReduce(memory, memory, count, FLOAT, SUM, comm, stream) }
}

#[test]
fn a_group_takes_the_devices_streams_and_streams_of_the_host() {
    if ndevices() == 0 {
        return;
    }
    let ranks = init_all();
    for comm in ranks {
        let mut device: c_int = -1;
        // SAFETY: a local.
        succeeds(unsafe { ringCommCuDevice(comm, &mut device) });
        assert_eq!(device, 0);
    }
    let benches = [Bench::new(0), Bench::new(0)];
    let floats = [Floats::new(&benches[0], &[1.0; 99]), Floats::new(&benches[1], &[2.0; 99])];
    succeeds(ringGroupStart());
    for ((comm, floats), bench) in ranks.into_iter().zip(&floats).zip(&benches) {
        succeeds(sum(floats, 99, comm, bench.stream.raw()));
    }
    succeeds(ringGroupEnd());
    assert_eq!(floats[0].read(&benches[0]), [3.0; 99]);
    assert_eq!(floats[1].read(&benches[1]), [3.0; 99]);

    let mut streams = [null_mut(); 2];
    for ((comm, floats), stream) in ranks.into_iter().zip(&floats).zip(&mut streams) {
        // SAFETY: a local.
        succeeds(unsafe { ringStreamCreate(stream) });
        succeeds(sum(floats, 99, comm, *stream));
    }
    for stream in streams {
        // SAFETY: safe for any argument.
        succeeds(unsafe { ringStreamSynchronize(stream) });
    }
    // Another stream of the device may read it now, though nothing orders it.
    assert_eq!(floats[0].read(&benches[1]), [6.0; 99]);
    assert_eq!(floats[1].read(&benches[0]), [6.0; 99]);
    for (comm, stream) in ranks.into_iter().zip(streams) {
        // SAFETY: safe for any argument.
        unsafe {
            succeeds(ringStreamDestroy(stream));
            succeeds(ringCommDestroy(comm));
        }
    }
}

/// How a sum runs, as a C program reads it.
fn transport(comm: ringComm_t) -> String {
    // SAFETY: numbers and characters.
    let mut explain: ringExplain_t = unsafe { std::mem::zeroed() };
    explain.size = size_of::<ringExplain_t>();
    (explain.magic, explain.version) = (RING_MAGIC, RING_VERSION_CODE as u32);
    // SAFETY: a local that was initialized.
    succeeds(unsafe { ringCommExplain(comm, ALL_REDUCE, 99, FLOAT, SUM, 0, &mut explain) });
    let name = explain.transport.map(|byte| byte as u8);
    CStr::from_bytes_until_nul(&name).expect("a NUL").to_string_lossy().into_owned()
}

/// A library that was built without nvcc says so, and computes all the same.
#[test]
fn ranks_without_kernels_say_so_and_go_through_the_host() {
    if !is_child() {
        if is_on_fake() {
            // Such a library embeds an empty file.
            let folder = scratch("no-kernels");
            let image = folder.join("image");
            std::fs::write(&image, []).expect("a file");
            let image = image.to_str().expect("UTF-8");
            let test = "interface::ranks_without_kernels_say_so_and_go_through_the_host";
            let text = child(test, &[("RINGCOMM_FATBIN", image), ("RINGCOMM_DEBUG", "1")]);
            std::fs::remove_dir_all(&folder).expect("it was made above");
            let said = "are gpu/staged (no kernels): CUDA: ringcomm was built without kernels";
            assert!(text.contains(said), "{text}");
        }
        return;
    }
    let ranks = init_all();
    assert_eq!(transport(ranks[0]), "gpu/staged (no kernels)");
    let benches = [Bench::new(0), Bench::new(0)];
    let floats = [Floats::new(&benches[0], &[1.0; 99]), Floats::new(&benches[1], &[2.0; 99])];
    succeeds(ringGroupStart());
    for ((comm, floats), bench) in ranks.into_iter().zip(&floats).zip(&benches) {
        succeeds(sum(floats, 99, comm, bench.stream.raw()));
    }
    succeeds(ringGroupEnd());
    assert_eq!(floats[0].read(&benches[0]), [3.0; 99]);
    assert_eq!(floats[1].read(&benches[1]), [3.0; 99]);
    for comm in ranks {
        // SAFETY: safe for any argument.
        succeeds(unsafe { ringCommDestroy(comm) });
    }
}

#[test]
fn what_is_no_stream_and_no_scalar_of_the_host_is_refused() {
    if ndevices() == 0 {
        return;
    }
    let ranks = init_all();
    let bench = Bench::new(0);
    let floats = Floats::new(&bench, &[1.0; 4]);
    let garbage = std::ptr::without_provenance_mut(usize::MAX - 7);
    assert_eq!(sum(&floats, 4, ranks[0], garbage), ringInvalidArgument);
    assert!(last_error().contains("is no stream"), "{}", last_error());
    let mut op = RawRedOp(0);
    let scalar = floats.memory.pointer().cast();
    let residence = RawScalarResidence(ringScalarResidence_t::ringScalarDevice as i32);
    // SAFETY: refused before it is read.
    let made = unsafe { ringRedOpCreatePreMulSum(&mut op, scalar, FLOAT, residence, ranks[0]) };
    assert_eq!(made, ringInvalidArgument);
    assert!(last_error().contains("in the memory of a CUDA device"), "{}", last_error());
    for comm in ranks {
        // SAFETY: safe for any argument.
        succeeds(unsafe { ringCommDestroy(comm) });
    }
}
