//! The name of this machine, for people who read an error.
#![allow(unsafe_code)]

use std::sync::OnceLock;

/// Bytes of a host name, with its end: Linux allows 64 and the NUL.
const BYTES: usize = 65;

/// The name of this host, as `hostname` prints it; empty where the system gives none.
pub fn name() -> &'static str {
    static NAME: OnceLock<String> = OnceLock::new();
    NAME.get_or_init(|| {
        let mut bytes = [0u8; BYTES];
        // SAFETY: the pointer and length are those of a live array.
        let result = unsafe { libc::gethostname(bytes.as_mut_ptr().cast(), BYTES) };
        let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(0);
        if result == 0 {
            String::from_utf8_lossy(&bytes[..end]).into_owned()
        } else {
            String::new()
        }
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_name_is_the_kernels() {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("Linux has it");
        assert_eq!(super::name(), kernel.trim_end());
    }
}
