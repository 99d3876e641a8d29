//! NCCL's headers, as bindgen reads them in C.
//!
//! They include CUDA's, of which they need three names: a folder of stand-ins has those.

use super::declarations::{Constant, Declarations};
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::LazyLock;

/// What CUDA's headers have that NCCL's need.
const STAND_INS: [(&str, &str); 5] = [
    (
        "cuda_runtime.h",
        "#include <stddef.h>\n#include <stdint.h>\n\
         typedef struct CUstream_st *cudaStream_t;\ntypedef struct CUevent_st *cudaEvent_t;\n",
    ),
    ("cuda_fp16.h", ""),
    ("cuda_bf16.h", ""),
    ("cuda_fp8.h", ""),
    ("cuda.h", "typedef enum { CU_MEM_LOCATION_TYPE_INVALID = 0 } CUmemLocationType;\n"),
];

static CUDA: LazyLock<PathBuf> = LazyLock::new(|| {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join("nccl-header-cuda");
    fs::create_dir_all(&folder).expect("a folder below target");
    for (name, text) in STAND_INS {
        fs::write(folder.join(name), format!("#pragma once\n{text}")).expect("a file in it");
    }
    folder
});

/// A release of NCCL by its headers.
pub struct Release {
    pub version: String,
    pub is_newest: bool,
    /// `nccl.h`.
    pub core: Declarations,
    /// What `nccl_device.h` has for the host; the first releases have none.
    pub device: Declarations,
}

impl Release {
    fn read(folder: &Path, version: String, is_newest: bool) -> Self {
        let text = fs::read_to_string(folder.join("nccl.h")).expect("nccl.h");
        let core = bound(folder, &format!("#include <nccl.h>\n{}", numbers(&text)), "nccl\\.h");
        let device = match device(folder) {
            "" => Declarations::default(),
            includes => bound(folder, includes, "nccl_device.*\\.h"),
        };
        Self { version, is_newest, core: with_numbers(core), device }
    }
}

/// The releases below a folder, the newest last.
pub fn releases(folder: &Path) -> Vec<Release> {
    let mut found = Vec::new();
    for entry in fs::read_dir(folder).expect("the folder of headers") {
        let path = entry.expect("an entry").path();
        let name = path.file_name().expect("a name").to_string_lossy().into_owned();
        let parts: Result<Vec<u32>, _> = name.split('.').map(str::parse).collect();
        if let Ok(parts) = parts {
            found.push((parts, path, name));
        }
    }
    found.sort();
    let newest = found.len().checked_sub(1).expect("scripts/nccl_headers.py fetches headers");
    let read = |(at, (_, path, name)): (usize, (_, PathBuf, String))| {
        Release::read(&path, name, at == newest)
    };
    found.into_iter().enumerate().map(read).collect()
}

/// What includes the declarations for the host. Those of older releases lie between C++.
fn device(folder: &Path) -> &'static str {
    if folder.join("nccl_device/host.h").exists() {
        "#include <nccl_device.h>\n"
    } else if folder.join("nccl_device.h").exists() {
        "#include <nccl_device/core.h>\n\
         #include <nccl_device/lsa_barrier.h>\n#include <nccl_device/ll_a2a.h>\n"
    } else {
        ""
    }
}

/// What the headers that `includes` names declare in files that are called so.
pub fn bound(folder: &Path, includes: &str, files: &str) -> Declarations {
    let text = bindgen::Builder::default()
        .header_contents("includes.h", includes)
        .clang_args(["-I", &folder.display().to_string(), "-I", &CUDA.display().to_string()])
        // Where it is not, older names are macros.
        .clang_arg("-DNCCL_OS_LINUX")
        .allowlist_file(format!(".*/{files}"))
        .allowlist_var(format!("{NUMBER_OF}.*"))
        .layout_tests(false)
        .size_t_is_usize(true)
        .generate_comments(false)
        .prepend_enum_name(false)
        .generate()
        .expect("libclang reads the header (scripts/test sets LIBCLANG_PATH)")
        .to_string();
    Declarations::read([text.as_str()].into_iter())
}

/// Before the name of a macro in that of a constant with its value.
const NUMBER_OF: &str = "number_of_";

/// Constants for all macros of a header that are whole numbers: clang knows their values, where
/// bindgen does not know those that name other headers' macros. In C.
pub fn numbers(text: &str) -> String {
    let constant = |name: &str, value: &str| format!("enum {{ {NUMBER_OF}{name} = {value} }};\n");
    let mut all = String::new();
    for line in text.lines() {
        let words = line.trim_start().strip_prefix("#define ");
        let Some((name, value)) = words.and_then(|words| words.trim().split_once(' ')) else {
            continue;
        };
        let value = value.split("/*").next().unwrap_or("").split("//").next().unwrap_or("").trim();
        let is_float = value.ends_with('f') && value.contains('.');
        let is_other = value.is_empty() || value == "NULL" || value.starts_with(['{', '"', '\\']);
        if name.starts_with("NCCL_") && !name.contains('(') && !is_float && !is_other {
            all += &format!("#ifdef {name}\n{}#endif\n", constant(name, name));
        }
    }
    // It has no name in C.
    if let Some(value) = magic(text, "NCCL_SIM_INFO_INITIALIZER") {
        all += &constant("SIM_INFO_MAGIC", value);
    }
    all
}

/// The number that tells whether a structure was initialized.
fn magic<'a>(text: &'a str, initializer: &str) -> Option<&'a str> {
    let (_, rest) = text.split_once(&format!("#define {initializer} {{"))?;
    let line = rest.lines().find(|line| line.contains("/* magic */"))?;
    line.split(',').next().map(str::trim)
}

/// With macros by their own names, as numbers that are of no enum.
pub fn with_numbers(mut all: Declarations) -> Declarations {
    let is_macro = |name: &str| name.starts_with("NCCL_");
    let by_bindgen = |constant: &Constant| constant.of == "u32" || constant.of == "i32";
    all.constants.retain(|name, constant| !(is_macro(name) && by_bindgen(constant)));
    let numbers: Vec<String> =
        all.constants.keys().filter(|name| name.starts_with(NUMBER_OF)).cloned().collect();
    for name in numbers {
        let constant = all.constants.remove(&name).expect("one of the keys");
        let own = name[NUMBER_OF.len()..].to_string();
        all.constants.insert(own, Constant { of: "a macro".into(), ..constant });
    }
    all
}
