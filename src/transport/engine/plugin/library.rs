//! Finding, opening and starting network plugins, by the names that NCCL looks for.
//!
//! A library is never unloaded: threads and exit handlers of plugins do not survive that. A plugin
//! without contexts (versions 6 and 8) is started once for the whole process; others are started
//! and ended for each engine.
#![allow(unsafe_code)]

use super::abi::{NetDevice, PluginAbi, PluginTable, told};
use super::calls::NetCalls;
use crate::error::{Error, Result};
use crate::fork::{ForkSafeMutex, generation};
use crate::os::environment;
use crate::os::thread_signals::{NoPipeSignal, with_own_signals};
use std::ffi::{CStr, CString, c_int, c_void};
use std::path::Path;

/// What NCCL's users name plugins with, and choose among several.
const PLUGIN_VARIABLE: &str = "NCCL_NET_PLUGIN";
const NAME_VARIABLE: &str = "NCCL_NET";

/// What is looked for where nothing is named.
const USUAL: &str = "libnccl-net.so";

/// The longest message that a plugin has to take which says nothing else: NCCL sends no longer ones
/// before version 11.
const MOST_BYTES: usize = 1 << 30;

/// The plugins that were started in this process or before it was forked, by their structures'
/// addresses, and the process in which; locked while a plugin starts or ends.
static STARTED: ForkSafeMutex<Vec<(usize, u32)>> = ForkSafeMutex::new(Vec::new());

/// A plugin that has started.
pub struct NetPlugin {
    pub calls: NetCalls,
    /// Null where the version has none.
    pub context: *mut c_void,
    pub name: String,
    /// The library's name, without the folder.
    pub file: String,
    /// What can be used, with the number.
    pub devices: Vec<(c_int, NetDevice)>,
    /// The longest message.
    pub most_bytes: usize,
}

impl NetPlugin {
    /// The first of the plugins that are named which can be used: by `name`, or else as NCCL's
    /// users name them.
    pub fn start(name: Option<&str>) -> Result<NetPlugin> {
        let named = name.map(String::from).or_else(|| environment::variable(PLUGIN_VARIABLE));
        let named = named.unwrap_or_else(|| USUAL.into());
        if is_none(&named) {
            return Err(unusable(&format!("{PLUGIN_VARIABLE}={named} asks for none")));
        }
        let mut reasons = Vec::new();
        for item in named.split(',').filter(|item| !item.is_empty()) {
            match start_one(item) {
                Ok(plugin) => return Ok(plugin),
                Err(why) => reasons.push(format!("{item}: {why}")),
            }
        }
        Err(unusable(&reasons.join("; ")))
    }

    /// End it, once all connections are closed; `within` runs what may not come back.
    pub fn end(&self, within: impl FnOnce(Box<dyn FnOnce() + Send>)) {
        if !self.calls.abi.has_contexts() {
            return;
        }
        let (calls, context) = (self.calls, SentContext(self.context));
        let _alone = STARTED.lock();
        within(Box::new(move || {
            let SentContext(context) = { context };
            // SAFETY: nothing of the context is open any more. What fails changes nothing.
            let _ = unsafe { calls.finalize(context) };
        }));
    }

    /// What went wrong in a call.
    pub fn told(&self, call: &str, code: c_int) -> String {
        format!("network plugin {} ({}): {call}: {}", self.name, self.file, told(code))
    }
}

/// A context on its way to the thread that ends it.
struct SentContext(*mut c_void);

// SAFETY: plugins are told of no threads, and may be called from any.
unsafe impl Send for SentContext {}

/// Whether a list of plugins names none.
fn is_none(named: &str) -> bool {
    named.split(',').all(str::is_empty) || named.eq_ignore_ascii_case("none")
}

/// Whether the environment asks for a plugin, or forbids all.
pub fn is_asked_for() -> Option<bool> {
    environment::variable(PLUGIN_VARIABLE).map(|named| !is_none(&named))
}

fn unusable(why: &str) -> Error {
    Error::usage(format!(
        "no network plugin can be used: {why}; name one with RINGCOMM_NET=plugin:NAME or \
         {PLUGIN_VARIABLE}=NAME, where NAME is a path, or NAME of libnccl-net-NAME.so"
    ))
}

/// Open a library by its own name, or by the name of a plugin; the name that it was found by.
fn open(item: &str) -> std::result::Result<(*mut c_void, String), String> {
    let mut names = vec![item.to_string()];
    let is_file = item.contains('/') || item.starts_with("lib") && item.ends_with(".so");
    if !is_file {
        names.push(format!("libnccl-net-{item}.so"));
    }
    let mut reasons = Vec::new();
    for name in names {
        let Ok(text) = CString::new(name.as_str()) else { continue };
        let library = with_own_signals(|| {
            // SAFETY: a C string; loading runs the library's initializers, as any program's that
            // is linked with it.
            unsafe { libc::dlopen(text.as_ptr(), libc::RTLD_NOW | libc::RTLD_LOCAL) }
        });
        if !library.is_null() {
            return Ok((library, name));
        }
        // SAFETY: the loader's own text, or null, read before anything else is asked of it.
        let why = unsafe { libc::dlerror() };
        if !why.is_null() {
            // SAFETY: as above.
            reasons.push(unsafe { CStr::from_ptr(why) }.to_string_lossy().into_owned());
        }
    }
    Err(reasons.join("; "))
}

/// The newest structure that a library exports.
fn table(library: *mut c_void) -> std::result::Result<PluginTable, String> {
    for abi in PluginAbi::ALL {
        // SAFETY: a library that stays loaded, and a C string.
        let words = unsafe { libc::dlsym(library, abi.symbol().as_ptr()) };
        if words.is_null() {
            continue;
        }
        let bytes = symbol_bytes(words);
        return match bytes {
            Some(bytes) if bytes != abi.bytes() => Err(format!(
                "its {} has {bytes} bytes and not {}: it is another interface, such as that of \
                 AWS Neuron; use a build for NVIDIA's NCCL",
                abi.symbol().to_string_lossy(),
                abi.bytes()
            )),
            _ => Ok(PluginTable { abi, words: words.cast_const().cast() }),
        };
    }
    Err("it exports none of ncclNetPlugin_v6, _v8, _v11 and _v12".into())
}

/// How long what a library exports is, where the loader knows.
#[cfg(target_env = "gnu")]
fn symbol_bytes(symbol: *mut c_void) -> Option<usize> {
    /// `RTLD_DL_SYMENT`: give the entry of the symbol's table.
    const ENTRY: c_int = 1;
    // SAFETY: all zeros are such a structure.
    let mut info: libc::Dl_info = unsafe { std::mem::zeroed() };
    let mut entry: *mut libc::Elf64_Sym = std::ptr::null_mut();
    // SAFETY: the call fills both; the entry is the loader's.
    unsafe {
        let found = libc::dladdr1(symbol, &mut info, (&raw mut entry).cast(), ENTRY);
        if found == 0 || entry.is_null() || info.dli_saddr != symbol {
            return None;
        }
        usize::try_from((*entry).st_size).ok().filter(|bytes| *bytes > 0)
    }
}

#[cfg(not(target_env = "gnu"))]
fn symbol_bytes(_symbol: *mut c_void) -> Option<usize> {
    None
}

/// Start a plugin, or say why it cannot be used.
fn start_one(item: &str) -> std::result::Result<NetPlugin, String> {
    let _signals = NoPipeSignal::begin();
    let mut started = STARTED.lock();
    let (library, path) = open(item)?;
    let file = Path::new(&path)
        .file_name()
        .map_or(path.clone(), |name| name.to_string_lossy().into_owned());
    let table = table(library)?;
    if let Some(asked) = environment::variable(NAME_VARIABLE)
        && !table.name().eq_ignore_ascii_case(&asked)
    {
        let name = table.name();
        return Err(format!("it is {name}, and {NAME_VARIABLE}={asked} asks for another"));
    }
    let before = started.iter().find(|(address, _)| *address == table.words.addr());
    if before.is_some_and(|(_, born)| *born != generation()) {
        return Err("it was started before this process was forked, which it may not survive; \
                    make the first communicator after the fork"
            .into());
    }
    let is_running = before.is_some() && !table.abi.has_contexts();
    let context = match is_running {
        true => std::ptr::null_mut(),
        // SAFETY: it has contexts or is not started; the lock is held.
        false => with_own_signals(|| unsafe { table.start() })
            .map_err(|code| format!("its start failed: {}", told(code)))?,
    };
    if before.is_none() {
        started.push((table.words.addr(), generation()));
    }
    let Some(calls) = table.calls() else {
        return Err("it lacks calls that every plugin has".into());
    };
    devices(&calls)
        .map(|devices| {
            let most = devices.iter().filter_map(|(_, device)| device.most_bytes).min();
            // What a test tells of lengths is an `int`.
            let most_bytes = most.unwrap_or(MOST_BYTES).min(c_int::MAX as usize);
            NetPlugin { calls, context, name: table.name(), file, devices, most_bytes }
        })
        .inspect_err(|_| {
            // SAFETY: it has just started, and nothing is open.
            let _ = unsafe { calls.finalize(context) };
        })
}

/// The devices that can be used.
fn devices(calls: &NetCalls) -> std::result::Result<Vec<(c_int, NetDevice)>, String> {
    let failed = |call, code| format!("{call} failed: {}", told(code));
    // SAFETY: the plugin has started.
    let count = unsafe { calls.devices() }.map_err(|code| failed("devices", code))?;
    let mut devices = Vec::new();
    for number in 0..count {
        // SAFETY: a device of the plugin's.
        let device = unsafe { calls.device(number) };
        let device = device.map_err(|code| failed("getProperties", code))?;
        if device.is_usable {
            devices.push((number, device));
        }
    }
    match devices.is_empty() {
        true if count > 0 => Err("none of its devices takes memory of the host's".into()),
        true => Err("it has found no device".into()),
        false => Ok(devices),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_list_that_names_no_plugin_is_none() {
        for named in ["", ",", "none", "NONE"] {
            assert!(is_none(named), "{named}");
        }
        for named in ["ofi", "none,ofi", "./none.so"] {
            assert!(!is_none(named), "{named}");
        }
    }

    #[test]
    fn what_is_not_found_is_told_with_every_name_that_was_tried() {
        let error = NetPlugin::start(Some("no-such-plugin,/nowhere/x.so")).err().unwrap();
        let text = error.to_string();
        for name in ["libnccl-net-no-such-plugin.so", "/nowhere/x.so", "RINGCOMM_NET=plugin:NAME"] {
            assert!(text.contains(name), "{text}");
        }
        assert!(!text.contains("libnccl-net-/nowhere"), "{text}");
    }

    #[test]
    fn a_library_that_is_no_plugin_is_told_so() {
        let text = NetPlugin::start(Some("libc.so.6")).err().unwrap().to_string();
        assert!(text.contains("exports none of ncclNetPlugin_v6"), "{text}");
    }
}
