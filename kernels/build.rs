//! Finds nvcc and compiles the kernels to the one fatbin that the library embeds.
//!
//! The fatbin is kept under the hash of all that goes into it, outside Cargo's folders: profiles
//! and sanitizers share it, and a change of Rust does not compile it again. Where there is no nvcc
//! the file is empty, and the library says at run time that it has no kernels.

use std::collections::hash_map::DefaultHasher;
use std::env;
use std::fs;
use std::hash::{Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;

/// What is compiled, and for which devices: the first of each family that runs machine code as it
/// is, and what the driver compiles for all others. The oldest that has every instruction in use
/// serves all after it.
const COMPILED: [(u32, &str); 2] = [(80, "sm_80"), (90, "sm_90,sm_100,sm_120,compute_90")];

/// Where the tests install one, and a file that they take away then. Cargo builds again when a file
/// that it watches is no more; the folder itself, where nobody ever makes it, would be missing each
/// time.
const INSTALLED: &str = "target/venv-cuda";
const MISSED: &str = "target/kernels/no-nvcc";
/// The first nvcc that knows all of them.
const OLDEST: (u32, u32) = (12, 8);

pub fn build() {
    for source in sources() {
        println!("cargo:rerun-if-changed={}", source.display());
    }
    println!("cargo:rerun-if-env-changed=NVCC");
    println!("cargo:rerun-if-env-changed=CUDA_HOME");
    let fatbin = PathBuf::from(variable("OUT_DIR")).join("ringcomm.fatbin");
    let content = match compiler() {
        Ok(nvcc) => kept(&nvcc),
        Err(reason) => {
            println!("cargo:warning=built without GPU kernels: {reason}");
            // One that comes later is found.
            println!("cargo:rerun-if-env-changed=PATH");
            if Path::new("target").is_dir() {
                miss();
                println!("cargo:rerun-if-changed={MISSED}");
            }
            Vec::new()
        }
    };
    // A file that stays as it is compiles nothing again.
    if fs::read(&fatbin).ok().as_ref() != Some(&content) {
        fs::write(&fatbin, content).expect("OUT_DIR is there to be written");
    }
    println!("cargo:rustc-env=RINGCOMM_EMBEDDED_FATBIN={}", fatbin.display());
}

/// Leave the file that says so, older than this build.
fn miss() {
    let path = Path::new(MISSED);
    if path.exists() {
        return;
    }
    let _ = fs::create_dir_all("target/kernels");
    let made = fs::File::create(path);
    let _ = made.and_then(|file| file.set_modified(std::time::SystemTime::UNIX_EPOCH));
}

fn variable(name: &str) -> String {
    env::var(name).unwrap_or_else(|_| panic!("Cargo sets {name} for build scripts"))
}

/// An nvcc, and what it says of its version.
struct Nvcc {
    path: PathBuf,
    version: String,
}

/// By NVCC, by CUDA_HOME, on the PATH, or where the tests install it.
fn compiler() -> Result<Nvcc, String> {
    let named = env::var_os("NVCC").map(PathBuf::from);
    let home = env::var_os("CUDA_HOME").map(|home| PathBuf::from(home).join("bin/nvcc"));
    let tests = glob(&Path::new(INSTALLED).join("lib"), "python3")
        .map(|python| python.join("site-packages/nvidia/cu13/bin/nvcc"))
        .and_then(|nvcc| nvcc.canonicalize().ok());
    let candidates = [named, home, Some(PathBuf::from("nvcc")), tests];
    let found = candidates.into_iter().flatten().find_map(|path| {
        let output = Command::new(&path).arg("--version").output().ok()?;
        let version = String::from_utf8_lossy(&output.stdout).into_owned();
        output.status.success().then_some(Nvcc { path, version })
    });
    let nvcc = found.ok_or("no nvcc by NVCC, CUDA_HOME or PATH")?;
    if release(&nvcc.version).is_some_and(|release| release < OLDEST) {
        let (major, minor) = OLDEST;
        return Err(format!("{} is older than {major}.{minor}", nvcc.path.display()));
    }
    if Command::new("g++").arg("--version").output().is_err() {
        return Err("nvcc needs g++ for its host side".into());
    }
    Ok(nvcc)
}

/// The entry of a folder that begins with `prefix`.
fn glob(folder: &Path, prefix: &str) -> Option<PathBuf> {
    let entries = folder.read_dir().ok()?.flatten();
    let mut found = entries.filter(|entry| entry.file_name().to_string_lossy().starts_with(prefix));
    found.next().map(|entry| entry.path())
}

/// `release 13.0,` in what nvcc says.
fn release(version: &str) -> Option<(u32, u32)> {
    let number = version.split("release ").nth(1)?.split(',').next()?;
    let (major, minor) = number.split_once('.')?;
    Some((major.parse().ok()?, minor.parse().ok()?))
}

/// The flags beside cc's own.
fn flags() -> Vec<String> {
    let mut flags = vec!["-std=c++17".to_string(), "-fatbin".into()];
    // Products and sums are rounded one by one, as on the host.
    flags.push("-fmad=false".into());
    // Registers that do not suffice fail the build.
    flags.extend(["-Xptxas".into(), "-warn-spills,-warn-lmem-usage,-Werror".into()]);
    for (version, devices) in COMPILED {
        flags.push(format!("-gencode=arch=compute_{version},code=[{devices}]"));
    }
    flags
}

/// What nvcc reads of the folder: not this script, nor what is only for the host.
fn sources() -> Vec<PathBuf> {
    let mut sources: Vec<_> = Path::new("kernels")
        .read_dir()
        .expect("the kernels are part of the package")
        .flatten()
        .map(|entry| entry.path())
        .filter(|path| {
            path.extension().is_some_and(|extension| {
                ["cu", "cuh", "h"].contains(&extension.to_string_lossy().as_ref())
            })
        })
        .collect();
    sources.sort();
    sources
}

/// The fatbin of these sources and this compiler: as kept, or compiled now.
fn kept(nvcc: &Nvcc) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    (&nvcc.version, flags()).hash(&mut hasher);
    for source in sources() {
        (&source, fs::read(&source).expect("listed a moment ago")).hash(&mut hasher);
    }
    let shared = Path::new("target");
    let folder = match shared.is_dir() {
        true => shared.join("kernels"),
        false => PathBuf::from(variable("OUT_DIR")),
    };
    let place = folder.join(format!("{:016x}.fatbin", hasher.finish()));
    if let Ok(content) = fs::read(&place) {
        return content;
    }
    let content = fs::read(compile(nvcc)).expect("nvcc wrote what it was asked for");
    // Whole or not at all, for builds that run side by side. No place to keep it is no error.
    let draft = place.with_extension(format!("{}", std::process::id()));
    let _ = fs::create_dir_all(&folder);
    let _ = fs::write(&draft, &content).and_then(|()| fs::rename(&draft, &place));
    content
}

/// Fail the build on a kernel without `__launch_bounds__`: what a thread of it may have in
/// registers would be anybody's guess. With them ptxas keeps to their share, and what does not fit
/// is spilled, on which the build fails, too.
fn check_bounds() {
    for source in sources() {
        let text = fs::read_to_string(&source).expect("listed a moment ago");
        for line in text.lines().filter(|line| line.contains("__global__")) {
            let is_bounded = line.contains("__launch_bounds__(");
            assert!(is_bounded, "{}: a kernel without __launch_bounds__: {line}", source.display());
        }
    }
}

/// The path of a fresh fatbin.
fn compile(nvcc: &Nvcc) -> PathBuf {
    check_bounds();
    // The host side is thrown away, so it is always that of the machine that compiles.
    let host = variable("HOST");
    // SAFETY: a build script has one thread until cc starts its own below.
    unsafe { env::set_var("NVCC", &nvcc.path) };
    let mut build = cc::Build::new();
    build.cuda(true).cudart("none").debug(false).cargo_metadata(false).opt_level(3);
    build.target(&host).host(&host);
    for flag in flags() {
        build.flag(flag);
    }
    // Every core compiles for a device of its own; the result is the same.
    build.flag("--threads=0");
    let objects = build.file("kernels/ringcomm.cu").compile_intermediates();
    objects.into_iter().next().expect("one source gives one fatbin")
}
