//! This machine: its name for people who read an error, and what tells whether two ranks share it.

use crate::crypto::sha256;
use crate::fork::Once;
use std::hash::{BuildHasher, Hasher, RandomState};

/// The name of this host, as `hostname` prints it; empty where the system gives none.
pub fn name() -> &'static str {
    static NAME: Once<String> = Once::new();
    NAME.get_or_make(|| rustix::system::uname().nodename().to_string_lossy().into_owned())
}

/// What the kernel draws anew whenever the machine starts; empty where it does not say it.
pub(crate) fn boot() -> &'static [u8] {
    static BOOT: Once<Vec<u8>> = Once::new();
    let read = || std::fs::read("/proc/sys/kernel/random/boot_id").unwrap_or_default();
    BOOT.get_or_make(read).trim_ascii()
}

/// A number that the processes of one running machine share, in whatever containers they are.
pub fn machine() -> u64 {
    let digest = sha256(&[boot()]);
    u64::from_le_bytes(digest[..8].try_into().expect("eight of thirty-two bytes"))
}

/// A number that no other process has, but for children that were forked later.
fn own() -> u64 {
    static OWN: Once<u64> = Once::new();
    *OWN.get_or_make(drawn)
}

/// A number from the kernel's generator, which seeds the standard library's hashes.
fn drawn() -> u64 {
    RandomState::new().build_hasher().finish()
}

/// What ranks have in common that can meet through shared memory: the machine, the network
/// namespace (sockets by name belong to it), and the user, whose credentials are checked. `given`
/// takes the place of all three.
pub fn identity(given: Option<&str>) -> [u8; 32] {
    match given {
        Some(text) => sha256(&[text.as_bytes()]),
        None => found(boot(), own()),
    }
}

/// The identity of a process on a machine that says this of itself. All machines that say nothing
/// would be one, and their ranks would wait for each other in different memories: there, a process
/// has an identity of its own.
fn found(boot: &[u8], own: u64) -> [u8; 32] {
    let user = rustix::process::geteuid().as_raw();
    let namespace = std::fs::read_link("/proc/self/ns/net").unwrap_or_default();
    let own = if boot.is_empty() { own.to_le_bytes().to_vec() } else { Vec::new() };
    sha256(&[&own, boot, &user.to_le_bytes(), namespace.as_os_str().as_encoded_bytes()])
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_name_is_the_kernels() {
        let kernel = std::fs::read_to_string("/proc/sys/kernel/hostname").expect("Linux has it");
        assert_eq!(super::name(), kernel.trim_end());
    }

    #[test]
    fn a_given_identity_stands_for_the_machine() {
        use super::identity;
        assert_eq!(identity(None), identity(None));
        assert_eq!(identity(Some("a")), identity(Some("a")));
        assert_ne!(identity(Some("a")), identity(Some("b")));
        assert_ne!(identity(Some("a")), identity(None));
    }

    #[test]
    fn processes_of_machines_that_say_nothing_share_no_host() {
        use super::{drawn, found};
        assert_eq!(found(b"a", 1), found(b"a", 2));
        assert_ne!(found(b"a", 1), found(b"b", 1));
        assert_ne!(found(b"", 1), found(b"", 2));
        assert_ne!(drawn(), drawn());
    }
}
