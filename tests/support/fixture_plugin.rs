//! A network plugin for tests, compiled from `tests/net_plugin` with the settings of a test.
//!
//! Its settings are environment variables, which tests of one process would have in common: here
//! they are compiled into a copy of the library for each test instead.
#![allow(dead_code)]

use std::fs;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

/// A plugin's version and settings.
#[derive(Clone, Debug)]
pub struct FixturePlugin {
    pub abi: u32,
    pub devices: u32,
    /// As in `FIXTURE_FAULTS`.
    pub faults: &'static str,
    /// The longest message.
    pub most_bytes: usize,
    /// The layout of AWS Neuron's, under the same symbol.
    pub is_neuron: bool,
    /// A test's own copy, which nobody else starts, and which says what is called.
    pub copy: &'static str,
}

const SOURCES: [&str; 3] = [
    include_str!("../net_plugin/net_plugin.c"),
    include_str!("../net_plugin/net_plugin.h"),
    include_str!("fixture_plugin.rs"),
];

/// All versions of the interface.
pub const ABIS: [u32; 4] = [6, 8, 11, 12];

impl FixturePlugin {
    pub fn new(abi: u32) -> FixturePlugin {
        let (devices, most_bytes, is_neuron) = (1, 1 << 30, false);
        FixturePlugin { abi, devices, faults: "", most_bytes, is_neuron, copy: "" }
    }

    pub fn with_faults(abi: u32, faults: &'static str) -> FixturePlugin {
        FixturePlugin { faults, ..FixturePlugin::new(abi) }
    }

    fn folder(&self) -> PathBuf {
        let FixturePlugin { abi, devices, faults, most_bytes, is_neuron, copy } = self;
        let kind = if *is_neuron { "neuron" } else { "v" };
        let faults = faults.replace(['=', ','], "-");
        // Another source is another library.
        let mut hasher = DefaultHasher::new();
        SOURCES.hash(&mut hasher);
        let name =
            format!("{kind}{abi}-{devices}-{most_bytes}-{faults}-{copy}-{:x}", hasher.finish());
        Path::new(env!("CARGO_TARGET_TMPDIR")).join("net-plugin").join(name)
    }

    fn trace_path(&self) -> PathBuf {
        self.folder().join(format!("trace-{}", std::process::id()))
    }

    /// What a test's own copy has said of calls in this process; from then on it begins anew.
    pub fn take_trace(&self) -> String {
        let trace = fs::read_to_string(self.trace_path()).unwrap_or_default();
        let _ = fs::remove_file(self.trace_path());
        trace
    }

    /// What is read in the environment's place.
    fn settings(&self) -> String {
        let FixturePlugin { devices, faults, most_bytes, copy, .. } = self;
        let (folder, is_traced) = (self.folder(), u8::from(!copy.is_empty()));
        format!(
            "#define _GNU_SOURCE\n#include <stdio.h>\n#include <stdlib.h>\n#include <string.h>\n\
             #include <unistd.h>\n\
             static char *setting_of(const char *name) {{\n\
             static __thread char trace[4096];\n\
             snprintf(trace, sizeof trace, \"%s/trace-%d\", \"{}\", getpid());\n\
             return !strcmp(name, \"FIXTURE_DEVICES\") ? \"{devices}\"\n\
             : !strcmp(name, \"FIXTURE_FAULTS\") ? \"{faults}\"\n\
             : !strcmp(name, \"FIXTURE_MAXBYTES\") ? \"{most_bytes}\"\n\
             : {is_traced} && !strcmp(name, \"FIXTURE_TRACE\") ? trace : NULL;\n}}\n\
             #define getenv setting_of\n",
            folder.display()
        )
    }

    /// Compile it; the library's path.
    pub fn path(&self) -> String {
        // The programs' tests have a folder of their own.
        let packages = Path::new(env!("CARGO_MANIFEST_DIR")).ancestors();
        let mut sources = packages.map(|package| package.join("tests/net_plugin"));
        let sources = sources.find(|folder| folder.exists()).expect("the plugin's sources");
        let folder = self.folder();
        fs::create_dir_all(&folder).expect("a folder for the plugin");
        let file = if self.is_neuron { "libnccom-net.so" } else { "libnccl-net-fixture.so" };
        let library = folder.join(file);
        // Threads of a test program, and other programs, may be making the same.
        static NEXT: AtomicUsize = AtomicUsize::new(0);
        let own = format!("{}-{}", std::process::id(), NEXT.fetch_add(1, SeqCst));
        let (fresh, settings) = (folder.join(format!("{own}.so")), folder.join(format!("{own}.h")));
        if !library.exists() {
            fs::write(&settings, self.settings()).expect("a file of settings");
            let mut command = Command::new("cc");
            command.args(["-std=gnu11", "-O1", "-g", "-w", "-pthread", "-shared", "-fPIC"]);
            command.arg("-include").arg(&settings).arg(format!("-DABI={}", self.abi));
            command.args(self.is_neuron.then_some("-DNEURON"));
            command.arg(sources.join("net_plugin.c")).arg("-o").arg(&fresh);
            let status = command.status().expect("a compiler for C");
            assert!(status.success(), "{command:?}");
            fs::remove_file(&settings).expect("the file of settings");
            // Whoever has loaded the one that is there keeps it.
            if !library.exists() {
                fs::rename(&fresh, &library).expect("the plugin's library");
            }
        }
        library.to_str().expect("a path of text").into()
    }
}
