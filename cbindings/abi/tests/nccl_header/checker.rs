//! Every difference is told: a header and sources that agree, and each change of one of them.

use super::compare::{Exceptions, differences};
use super::declarations::Declarations;
use super::exports;
use super::header::{Release, bound, numbers, with_numbers};
use std::fs;
use std::path::Path;
use std::sync::LazyLock;

const HEADER: &str = "
#include <cuda_runtime.h>
#define NCCL_VERSION_CODE 23001
#define NCCL_UNIQUE_ID_BYTES 128 /* of an id */
#define NCCL_LEAST (-2147483647 - 1)
#define NCCL_NAME \"a name\"
#define NCCL_PART 0.5f
#define NCCL_NONE NULL
#define NCCL_SIM_INFO_INITIALIZER {  \\
  sizeof(ncclSimInfo_t), /* size */  \\
  0x74685283,            /* magic */ \\
}
typedef struct ncclComm* ncclComm_t;
typedef struct { char internal[NCCL_UNIQUE_ID_BYTES]; } ncclUniqueId;
typedef enum { ncclSum = 0, ncclMax = 2, ncclNumOps = 5 } ncclRedOp_t;
typedef enum { ncclInt8 = 0 } ncclDataType_t;
typedef struct ncclExt {
  struct ncclExt* next;
  struct { int vendor; int option; } key;
  union { int i; const char* s; } value;
} ncclExt_t;
typedef struct ncclConfig_v1 { size_t size; unsigned int magic; const char* name; } ncclConfig_t;
ncclRedOp_t ncclFold(const void* from, ncclDataType_t of, ncclRedOp_t by, ncclComm_t comm);
ncclRedOp_t pncclFold(const void* from, ncclDataType_t of, ncclRedOp_t by, ncclComm_t comm);
void ncclRead(ncclUniqueId id, ncclConfig_t* config, cudaStream_t stream);
";

const DEVICE: &str = "
#include <made.h>
#include <stdbool.h>
typedef unsigned ncclHandle;
typedef enum { ncclGinOff = 0, ncclGinOn = 1 } ncclGin_t;
typedef struct ncclReach { int ranks; bool isNear; ncclGin_t gin; } ncclReach_t;
struct ncclHidden { int inside; };
ncclReach_t ncclReached(ncclComm_t comm, struct ncclHidden* out, ncclHandle* handle);
";

const SOURCE: &str = "
pub const NCCL_VERSION_CODE: c_int = 23_001;
pub const NCCL_UNIQUE_ID_BYTES: usize = 128;
pub const NCCL_LEAST: c_int = c_int::MIN;
pub const SIM_INFO_MAGIC: c_uint = 0x7468_5283;
pub type ncclRedOp_t = c_int;
pub const ncclSum: ncclRedOp_t = 0;
pub const ncclMax: ncclRedOp_t = 1 << 1;
pub type ncclDataType_t = c_int;
pub const ncclInt8: ncclDataType_t = 0;
pub const ncclGinOn: ncclGin_t = 1;
pub struct ncclComm { _nothing: [u8; 0] }
pub type ncclComm_t = *mut ncclComm;
pub struct CUstream_st { _nothing: [u8; 0] }
pub type cudaStream_t = *mut CUstream_st;
#[repr(C)] pub struct ncclUniqueId { pub internal: [c_char; NCCL_UNIQUE_ID_BYTES] }
#[repr(C)] pub struct Key { pub vendor: i32, pub option: c_int }
#[repr(C)] pub union Value { pub i: c_int, pub s: *const c_char }
#[repr(C)] pub struct ncclExt_t { pub next: *mut ncclExt_t, pub key: Key, pub value: Value }
#[repr(C)] pub struct ncclConfig_t { pub size: usize, pub magic: c_uint, pub name: *const c_char }
pub type ncclGin_t = c_int;
#[repr(C)] pub struct ncclReach_t { pub ranks: c_int, pub isNear: bool, pub gin: ncclGin_t }
#[unsafe(no_mangle)]
pub unsafe extern \"C\" fn pncclFold(
    from: *const c_void, of: ncclDataType_t, by: ncclRedOp_t, comm: ncclComm_t,
) -> ncclRedOp_t { 0 }
#[unsafe(no_mangle)]
pub extern \"C\" fn pncclRead(i: ncclUniqueId, c: *mut ncclConfig_t, stream: cudaStream_t) {}
#[unsafe(no_mangle)]
pub extern \"C\" fn pncclReached(c: ncclComm_t, out: *mut c_void, h: *mut u32) -> ncclReach_t { c }
#[unsafe(no_mangle)]
pub extern \"C\" fn pncclOwn() {}
#[cfg(test)]
mod tests { extern \"C\" fn pncclOfTests() {} }
";

const BUT: Exceptions = Exceptions {
    changing: &[("ncclNumOps", "counts")],
    not_ours: &[],
    not_theirs: &[("ncclOwn", "a function of ours")],
};

/// The release with these headers, which lie in a folder of this name.
fn release(folder: &str, header: &str, device: &str) -> Release {
    let folder = Path::new(env!("CARGO_TARGET_TMPDIR")).join(format!("nccl-header-{folder}"));
    fs::create_dir_all(&folder).expect("a folder below target");
    fs::write(folder.join("made.h"), format!("#pragma once\n{header}")).expect("a header");
    fs::write(folder.join("device.h"), device).expect("a header");
    let includes = format!("#include <made.h>\n{}", numbers(header));
    Release {
        version: "2.30.1".into(),
        is_newest: true,
        core: with_numbers(bound(&folder, &includes, "made\\.h")),
        device: bound(&folder, "#include <device.h>\n", "device\\.h"),
    }
}

static NEWEST: LazyLock<Release> = LazyLock::new(|| release("made", HEADER, DEVICE));
static OLDER: LazyLock<Release> =
    LazyLock::new(|| Release { is_newest: false, ..release("older", HEADER, DEVICE) });

fn told(release: &Release, source: &str) -> Vec<String> {
    differences(release, &Declarations::read([source].into_iter()), &BUT)
}

#[test]
fn what_agrees_is_not_told() {
    assert_eq!(told(&NEWEST, SOURCE), [""; 0]);
    assert_eq!(told(&OLDER, SOURCE), [""; 0]);
}

/// One change of the sources, and what is said of it.
#[track_caller]
fn changed(from: &str, to: &str, wanted: &str) {
    assert_eq!(SOURCE.matches(from).count(), 1, "{from}");
    let told = told(&NEWEST, &SOURCE.replace(from, to));
    assert_eq!(told, [format!("NCCL 2.30.1{wanted}")], "{from} became {to}");
}

#[test]
fn another_number_is_told() {
    changed("= 1 << 1;", "= 1 << 2;", ": ncclMax is 2 in C, 4 in Rust");
    changed("c_int::MIN", "-1", ": NCCL_LEAST is -2147483648 in C, -1 in Rust");
    changed("0x7468_5283", "7", ": SIM_INFO_MAGIC is 1952993923 in C, 7 in Rust");
    changed("ncclGin_t = 1;", "ncclGin_t = 3;", ": ncclGinOn is 1 in C, 3 in Rust");
    changed("23_001", "23002", ": NCCL_VERSION_CODE is 23001 in C, 23002 in Rust");
    changed("pub const ncclMax", "const other", ": ncclMax is 2 in C, nothing in Rust");
    let least = ": NCCL_LEAST is -2147483648 in C, nothing in Rust";
    changed("pub const NCCL_LEAST", "const other", least);
    let counted = format!("{SOURCE} pub const ncclNumOps: ncclRedOp_t = 6;");
    assert_eq!(told(&NEWEST, &counted), ["NCCL 2.30.1: ncclNumOps is 5 in C, 6 in Rust"]);
    assert_eq!(told(&OLDER, &counted), [""; 0]);
}

#[test]
fn another_structure_is_told() {
    let size = ": field 0 of ncclUniqueId is internal: [c_char; 128] in C, internal: [c_char; 64]";
    changed("[c_char; NCCL_UNIQUE_ID_BYTES]", "[c_char; 64]", &format!("{size} in Rust"));
    let name = ": field 2 of ncclConfig_t is name: *const c_char in C,";
    changed(", pub name: *const c_char", "", &format!("{name} nothing in Rust"));
    let other = format!("{name} name: *mut c_char in Rust");
    changed("pub name: *const c_char", "pub name: *mut c_char", &other);
    let other = format!("{name} title: *const c_char in Rust");
    changed("pub name: *const", "pub title: *const", &other);
    let key = ": field 1 of ncclExt_t is key: ncclExt__bindgen_ty_1 in C, key: Key in Rust";
    changed("pub option: c_int", "pub option: i64", key);
    let value = ": field 2 of ncclExt_t is value: ncclExt__bindgen_ty_2 in C, value: Value in Rust";
    changed("pub union Value", "pub struct Value", value);
    let layout = ": ncclConfig_t is not in C's layout";
    changed("#[repr(C)] pub struct ncclConfig_t", "pub struct ncclConfig_t", layout);
    let gin = ": field 2 of ncclReach_t is gin: ncclGin_t in C, gin: i64 in Rust";
    changed("pub gin: ncclGin_t", "pub gin: i64", gin);
    let bytes = ": ncclGin_t is a number of 4 bytes in C, a number of 8 bytes in Rust";
    changed("pub type ncclGin_t = c_int", "pub type ncclGin_t = i64", bytes);
}

#[test]
fn a_structure_may_grow_at_its_end() {
    let grown = SOURCE.replace("pub name: *const c_char }", "pub name: *const c_char, more: u8 }");
    assert_ne!(grown, SOURCE);
    let more = "NCCL 2.30.1: field 3 of ncclConfig_t is nothing in C, more: u8 in Rust";
    assert_eq!(told(&NEWEST, &grown), [more]);
    assert_eq!(told(&OLDER, &grown), [""; 0]);
}

#[test]
fn another_prototype_is_told() {
    let fold = "(*const c_void, ncclDataType_t, ncclRedOp_t, ncclComm_t) -> ncclRedOp_t";
    let folds = |from: &str, to: &str, own: &str| {
        changed(from, to, &format!(": ncclFold is {fold} in C, {own} in Rust"));
    };
    let more = fold.replace(')', ", i32)");
    folds(", comm: ncclComm_t,\n", ", comm: ncclComm_t, more: c_int,\n", &more);
    folds(", comm: ncclComm_t,\n", ",\n", &fold.replace(", ncclComm_t", ""));
    let other = fold.replace("*const", "*mut");
    folds("from: *const c_void, of", "from: *mut c_void, of", &other);
    folds(") -> ncclRedOp_t {", ") -> c_int {", &fold.replace(") -> ncclRedOp_t", ") -> i32"));
    // The same to a processor, but not meant.
    let swapped = fold.replace("ncclDataType_t, ncclRedOp_t", "ncclRedOp_t, ncclDataType_t");
    let from = "of: ncclDataType_t, by: ncclRedOp_t";
    folds(from, "by: ncclRedOp_t, of: ncclDataType_t", &swapped);
    let reached = ": ncclReached is (ncclComm_t, *mut ncclHidden, *mut ncclHandle) -> ncclReach_t";
    let own = "(ncclComm_t, *mut c_void, *mut u64) -> ncclReach_t";
    changed("h: *mut u32", "h: *mut u64", &format!("{reached} in C, {own} in Rust"));
}

#[test]
fn functions_that_one_lacks_are_told() {
    changed("fn pncclFold(", "fn other(", " adds: ncclFold");
    changed("fn pncclReached(", "fn other(", " adds: ncclReached");
    let more = "fn pncclOwn() {} pub extern \"C\" fn pncclMore() {}";
    changed("fn pncclOwn() {}", more, ": it has no ncclMore, which the crate exports");
    changed("fn pncclOwn", "fn own", ": ncclOwn is no exception any more");
    let less = SOURCE.replace("fn pncclFold(", "fn other(");
    assert_eq!(told(&OLDER, &less), ["NCCL 2.30.1 has: ncclFold"]);
}

#[test]
fn what_a_new_release_has_is_told() {
    let mut header = HEADER.replace("ncclMax = 2", "ncclMax = 2, ncclMin = 3");
    header = header.replace("const char* name; }", "const char* name; int more; }");
    header += "#define NCCL_MOST 7\ntypedef struct { int of; } ncclNew_t;\n";
    header += "ncclRedOp_t ncclNew(ncclNew_t* of);\nncclRedOp_t pncclNewer(void);\n";
    let wanted = [
        "NCCL 2.30.1 adds: ncclNew; ncclNewer",
        "NCCL 2.30.1: field 3 of ncclConfig_t is more: i32 in C, nothing in Rust",
        "NCCL 2.30.1: the crate has no ncclNew_t",
        "NCCL 2.30.1: NCCL_MOST is 7 in C, nothing in Rust",
        "NCCL 2.30.1: ncclMin is 3 in C, nothing in Rust",
    ];
    assert_eq!(told(&release("new", &header, DEVICE), SOURCE), wanted);
}

#[test]
fn symbols_that_one_lacks_are_told() {
    let symbols = "0000 W ncclRead\n0010 T pncclRead\n0020 W ncclFold\n0030 T pncclFold\n\
                   0040 T ncclResetDebugInitInternal\n";
    let told = |symbols: &str| exports::differences(symbols, ["Fold", "Read"].into_iter());
    assert_eq!(told(symbols), [""; 0]);
    assert_eq!(
        told(&symbols.replace("W ncclRead", "T ncclRead")),
        ["it does not export W ncclRead", "it exports T ncclRead",]
    );
    assert_eq!(
        told(&symbols.replace("pncclFold", "ringFold")),
        ["it does not export T pncclFold", "it exports T ringFold",]
    );
}
