//! What the NCCL interface declares is what NVIDIA's headers say, of the newest release and of
//! older ones; and the library exports just that.
//!
//! `NCCL_HEADERS` names the folder into which scripts/nccl_headers.py puts the headers. Programs
//! compiled with any of them call one library, so what it has of an older release must stay.

#[path = "nccl_header/checker.rs"]
mod checker;
#[path = "nccl_header/compare.rs"]
mod compare;
#[path = "nccl_header/declarations.rs"]
mod declarations;
#[path = "nccl_header/exports.rs"]
mod exports;
#[path = "nccl_header/header.rs"]
mod header;

use compare::{Exceptions, differences};
use declarations::Declarations;
use std::path::Path;

const BUT: Exceptions = Exceptions {
    changing: &[
        ("ncclMaxRedOp", "follows from the size of a type; nobody passes it"),
        ("ncclNumOps", "counts the operations of a release"),
        ("ncclNumOps_dummy", "gives that type its size"),
        ("ncclNumResults", "counts the results of a release"),
        ("ncclNumTypes", "counts the data types of a release"),
    ],
    not_ours: &[(
        "ncclCftBarrierCreateRequirement",
        "declared, but NVIDIA's own library of 2.32.3 does not export it",
    )],
    not_theirs: &[
        (
            "ncclGinInboxA2ACreateRequirement",
            "2.32.3 declares it for Windows and exports it on Linux",
        ),
        (
            "ncclGinOutboxCreateRequirement",
            "2.32.3 declares it for Windows and exports it on Linux",
        ),
    ],
};

/// What the crate's sources declare.
fn ours() -> Declarations {
    let sources = ringcomm_abi::sources("cbindings/nccl/src");
    let read = |path| std::fs::read_to_string(path).expect("a source");
    let texts: Vec<String> = sources.into_iter().map(read).collect();
    Declarations::read(texts.iter().map(String::as_str))
}

fn variable(name: &str) -> String {
    std::env::var(name).unwrap_or_else(|_| panic!("{name} is not set; scripts/test abi sets it"))
}

#[test]
fn the_crate_declares_what_every_release_does() {
    let (ours, releases) = (ours(), header::releases(Path::new(&variable("NCCL_HEADERS"))));
    let [.., newest] = &releases[..] else { panic!("no headers") };
    let counts = (newest.core.functions.len(), newest.device.functions.len());
    assert!(counts.0 > 100 && counts.1 > 15, "bindgen saw {counts:?} functions");
    assert!(newest.core.constants.len() > 60, "{:?}", newest.core.constants);
    let all = releases.iter().flat_map(|release| differences(release, &ours, &BUT));
    let all: Vec<String> = all.collect();
    assert!(all.is_empty(), "{}", all.join("\n"));
}

#[test]
fn the_library_exports_every_function_twice_and_nothing_else() {
    let library = variable("RINGCOMM_NCCL_LIBRARY");
    let symbols = exports::output("nm", &["-D", "--defined-only", &library]);
    let ours = ours();
    let functions = ours.functions.keys().filter_map(|item| item.strip_prefix("pnccl"));
    let all = exports::differences(&symbols, functions);
    assert!(all.is_empty(), "{}", all.join("\n"));
    let dynamic = exports::output("readelf", &["-d", &library]);
    assert!(dynamic.contains("soname: [libnccl.so.2]"), "{dynamic}");
}

/// A program that has both in its process gets NCCL's names from the one that is NCCL.
#[test]
fn the_other_library_exports_none_of_it() {
    let symbols = exports::output("nm", &["-D", "--defined-only", &variable("RINGCOMM_LIBRARY")]);
    assert!(symbols.contains(" T ringAllReduce") && !symbols.contains("nccl"), "{symbols}");
}
