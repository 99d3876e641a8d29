//! What a process is told that has no driver, an old one, a damaged one, or no device.
//!
//! Each case is a process of its own: the driver is looked for once.

use super::here::{is_on_fake, skip};
use super::streams::{Floats, sum};
use super::support::config;
use super::{Bench, codes, fake, ndevices, on_seats};
use ringcomm::communicator::Communicator;
use ringcomm::config::{Config, DeviceChoice};
use ringcomm::device::cuda::{Driver, Kernels};
use std::path::{Path, PathBuf};
use std::process::Command;

/// This program again, running `test`, with other variables; what it and the library said.
pub fn child(test: &str, variables: &[(&str, &str)]) -> String {
    let program = std::env::current_exe().expect("this program");
    let mut command = Command::new(program);
    command.args(["--exact", test, "--nocapture", "--include-ignored"]);
    command.env("RINGCOMM_TEST_CHILD", "1").envs(variables.iter().copied());
    let output = command.output().expect("a child");
    let text = String::from_utf8_lossy(&output.stdout).into_owned();
    let text = text + &String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{text}");
    text
}

pub fn is_child() -> bool {
    std::env::var_os("RINGCOMM_TEST_CHILD").is_some()
}

/// Where the cases below look: says what becomes of a rank on device 0.
#[test]
fn a_rank_on_a_device_says_why_not() {
    if !is_child() {
        return;
    }
    let made = Communicator::init_all_on(&[DeviceChoice::Device(0)], &Config::default());
    println!("told: {}", made.err().map_or("nothing".into(), |error| error.to_string()));
    // Nobody who does not ask for a device is told anything.
    let made = Communicator::init_all(2, &Config::default());
    println!("others: {}", made.err().map_or("nothing".into(), |error| error.to_string()));
}

fn told(variables: &[(&str, &str)]) -> String {
    let text = child("gate::a_rank_on_a_device_says_why_not", variables);
    assert!(text.contains("others: nothing"), "{text}");
    text
}

pub fn scratch(name: &str) -> PathBuf {
    let folder = std::env::temp_dir().join(format!("ringcomm-{name}-{}", std::process::id()));
    std::fs::create_dir_all(&folder).expect("a folder");
    folder
}

#[test]
fn a_missing_driver_is_said() {
    let text = told(&[("LD_LIBRARY_PATH", "/nonexistent")]);
    // A machine with a driver has it where the loader looks without being told.
    let has_driver = text.contains("told: nothing") && !fake::is_there();
    assert!(has_driver || text.contains("there is no CUDA driver here"), "{text}");
}

#[test]
fn a_driver_without_an_entry_point_is_refused_with_its_name() {
    // Any library will do that is none of NVIDIA's.
    let folder = scratch("no-driver");
    let libraries = ["/lib/x86_64-linux-gnu/libm.so.6", "/usr/lib/aarch64-linux-gnu/libm.so.6"];
    let Some(library) = libraries.iter().find(|path| Path::new(path).exists()) else {
        return skip("there is no library in the usual places");
    };
    std::fs::copy(library, folder.join("libcuda.so.1")).expect("a copy");
    let text = told(&[("LD_LIBRARY_PATH", folder.to_str().expect("UTF-8"))]);
    std::fs::remove_dir_all(&folder).expect("it was made above");
    assert!(text.contains("the CUDA driver has no cuInit"), "{text}");
}

#[test]
fn an_old_driver_is_refused_with_both_versions() {
    if is_on_fake() {
        let text = told(&[("FAKECUDA_VERSION", "11040")]);
        assert!(text.contains("is of CUDA 11.4 and ringcomm needs 12.0"), "{text}");
    }
}

/// What is asked of a driver before anything else, once.
pub const STARTING: [&str; 2] = ["cuInit", "cuDriverGetVersion"];

#[test]
fn a_driver_without_a_device_is_said() {
    if is_on_fake() {
        let text = told(&[("FAKECUDA_DEVICES", "0")]);
        assert!(text.contains("CUDA_ERROR_NO_DEVICE"), "{text}");
    }
}

#[test]
fn a_driver_that_does_not_start_is_said() {
    if is_on_fake() {
        for symbol in STARTING {
            for code in codes::all().chain([4711]) {
                let text = told(&[("FAKECUDA_FAIL", &format!("{symbol}:1:{code}"))]);
                assert!(codes::is_told(&text, code), "{code} of {symbol}: {text}");
            }
        }
    }
}

#[test]
fn a_device_that_is_not_there_is_named() {
    let ndevices = ndevices();
    if ndevices > 0 {
        let seats = [DeviceChoice::Device(ndevices as i32)];
        let error = Communicator::init_all_on(&seats, &Config::default()).err().expect("none");
        let text = error.to_string();
        assert!(text.contains(&format!("there is no CUDA device {ndevices}")), "{text}");
    }
}

#[test]
fn a_process_that_does_not_use_cuda_does_not_load_the_driver() {
    if !is_child() {
        child("gate::a_process_that_does_not_use_cuda_does_not_load_the_driver", &[]);
        return;
    }
    let ranks = Communicator::init_all(2, &Config::default()).unwrap();
    let maps = std::fs::read_to_string("/proc/self/maps").unwrap();
    assert!(!maps.contains("libcuda"), "the driver is loaded");
    assert!(ranks.iter().all(|rank| rank.device().is_none()));
}

#[test]
fn the_current_device_is_the_ranks_unless_the_environment_forbids_it() {
    if ndevices() == 0 {
        return;
    }
    let last = ndevices() as i32 - 1;
    let bench = Bench::new(last);
    let _current = bench.device.enter().unwrap();
    let ranks = Communicator::init_all(1, &Config::default()).unwrap();
    assert_eq!(ranks[0].device(), Some(last));
    let config = Config::from_variables(|name| (name == "RINGCOMM_CUDA").then(|| "0".into()));
    let ranks = Communicator::init_all(1, &config.unwrap()).unwrap();
    assert_eq!(ranks[0].device(), None);
}

/// Child of the test below.
#[test]
fn kernels_that_do_not_load_say_so() {
    if !is_child() {
        if is_on_fake() {
            let test = "gate::kernels_that_do_not_load_say_so";
            let text = child(test, &[("FAKECUDA_FAIL", "cuModuleLoadData:1:2")]);
            assert!(text.contains("loading the kernels on CUDA device 0"), "{text}");
            assert!(text.contains("CUDA_ERROR_OUT_OF_MEMORY"), "{text}");
            let text = child(test, &[("FAKECUDA_FAIL", "cuModuleGetFunction:3:500")]);
            assert!(text.contains("finding the kernel ringcomm_reduce_w4"), "{text}");
            let text = child(test, &[("RINGCOMM_FATBIN", "/nonexistent")]);
            assert!(text.contains("RINGCOMM_FATBIN=\"/nonexistent\" cannot be read"), "{text}");
        }
        return;
    }
    let bench = Bench::new(0);
    let loaded = Kernels::of(&bench.device);
    println!("told: {}", loaded.err().map_or("nothing".into(), |error| error.to_string()));
}

/// A device without kernels says so, and its calls go through the host; so does one whose driver is
/// too old for them.
#[test]
fn a_device_that_is_too_old_for_the_kernels_says_so() {
    if !is_child() {
        if is_on_fake() {
            let test = "gate::a_device_that_is_too_old_for_the_kernels_says_so";
            let fails = [("FAKECUDA_FAIL", "cuModuleLoadData:1:209")];
            let text = child(test, &fails);
            assert!(text.contains("device 0 is older than sm_80"), "{text}");
            for code in [200, 218, 222] {
                let fail = format!("cuModuleLoadData:1:{code}");
                let text = child(test, &[("FAKECUDA_FAIL", &fail)]);
                let told = format!("too old for the kernels: it answered {code}");
                assert!(text.contains(&told), "{text}");
            }
        }
        return;
    }
    let config = Config { debug: 1, ..config() };
    let said = on_seats(&[DeviceChoice::Device(0); 2], &config, |comm, bench| {
        let floats = Floats::new(bench, &[1.5; 70]);
        // SAFETY: the memory lives until it is read.
        unsafe { comm.call(&sum(&floats, bench)) }.unwrap();
        assert_eq!(floats.read(bench), [3.0; 70]);
        comm.explain(&sum(&floats, bench)).unwrap().transport
    });
    // The driver refuses the first of both only.
    assert!(said.contains(&"gpu/staged (no kernels)"), "{said:?}");
}

#[test]
fn every_entry_point_is_in_the_table_once() {
    let mut symbols = Driver::SYMBOLS.to_vec();
    let count = symbols.len();
    symbols.sort_unstable();
    symbols.dedup();
    assert_eq!(symbols.len(), count);
}
