//! Another name for ranks to meet under, where another user of the machine holds the first.
//!
//! Without a secret anybody can compute the first name and bind it. This one comes from a key in a
//! folder that only this user can enter.

use crate::bootstrap::process::{random, user};
use crate::crypto;
use crate::error::{Error, Result};
use crate::os::descriptors::above_stdio;
use rustix::fs::{AtFlags, FileType, Mode, OFlags, fstat, linkat, mkdirat, openat, unlinkat};
use rustix::io::Errno;
use std::io::{Read, Write};
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};

const KEY: &str = "ringcomm.key";
const KEY_BYTES: usize = 32;

/// The abstract name that takes the place of `name`, which `holder` has: the same for every rank of
/// this user on this machine.
pub(super) fn private_name(name: &[u8], holder: u32) -> Result<Vec<u8>> {
    let me = user();
    let own = PathBuf::from(format!("/run/user/{me}"));
    let folder = match open_folder(&own) {
        Ok(folder) => folder,
        Err(_) => made_folder(&PathBuf::from(format!("/tmp/ringcomm-{me}"))).map_err(|why| {
            Error::usage(format!(
                "user {holder} of this machine holds the name under which ranks of user {me} meet \
                 that have no secret, and {why}: set RINGCOMM_SECRET to the same text on every rank"
            ))
        })?,
    };
    let key = key(&folder).map_err(|error| Error::os("making a key for this user", error))?;
    let tag = crypto::hmac(&key, &[name]);
    let hex: String = tag[..16].iter().map(|byte| format!("{byte:02x}")).collect();
    Ok(format!("ringcomm-{hex}").into_bytes())
}

/// A folder that nobody else can enter, or why it is none.
fn open_folder(path: &Path) -> Result<OwnedFd, String> {
    let said = |why: String| format!("{} {why}", path.display());
    let flags = OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC | OFlags::RDONLY;
    let opened = openat(rustix::fs::CWD, path, flags, Mode::empty()).and_then(above_stdio);
    let folder = opened.map_err(|error| said(format!("cannot be opened ({error})")))?;
    let found = fstat(&folder).map_err(|error| said(format!("says nothing ({error})")))?;
    if found.st_uid != user() {
        return Err(said(format!("belongs to user {}", found.st_uid)));
    }
    if found.st_mode & 0o077 != 0 {
        return Err(said("can be entered by others".into()));
    }
    Ok(folder)
}

fn made_folder(path: &Path) -> Result<OwnedFd, String> {
    match mkdirat(rustix::fs::CWD, path, Mode::RWXU) {
        Ok(()) | Err(Errno::EXIST) => open_folder(path),
        Err(error) => Err(format!("{} cannot be made ({error})", path.display())),
    }
}

/// The key in the folder; whoever needs it first draws it.
fn key(folder: &OwnedFd) -> Result<[u8; KEY_BYTES], std::io::Error> {
    if let Some(key) = read(folder)? {
        return Ok(key);
    }
    let mut drawn = [0; KEY_BYTES + 8];
    random(&mut drawn).map_err(|error| std::io::Error::other(error.to_string()))?;
    let (key, own) = drawn.split_at(KEY_BYTES);
    let name = format!("{KEY}.{:016x}", u64::from_le_bytes(own.try_into().expect("eight bytes")));
    let flags = OFlags::CREATE | OFlags::EXCL | OFlags::WRONLY | OFlags::CLOEXEC;
    let file = openat(folder, &name, flags, Mode::RUSR | Mode::WUSR).and_then(above_stdio)?;
    let written = std::fs::File::from(file).write_all(key);
    // The first to give it its name decides; nobody reads half a key.
    let linked = written.map(|()| linkat(folder, &name, folder, KEY, AtFlags::empty()));
    unlinkat(folder, &name, AtFlags::empty())?;
    match linked? {
        Ok(()) | Err(Errno::EXIST) => {}
        Err(error) => return Err(error.into()),
    }
    read(folder)?.ok_or_else(|| std::io::Error::from(Errno::NOENT))
}

fn read(folder: &OwnedFd) -> Result<Option<[u8; KEY_BYTES]>, std::io::Error> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::NONBLOCK | OFlags::CLOEXEC;
    let file = match openat(folder, KEY, flags, Mode::empty()).and_then(above_stdio) {
        Ok(file) => file,
        Err(Errno::NOENT) => return Ok(None),
        Err(error) => return Err(error.into()),
    };
    let found = fstat(&file)?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    if !is_file || found.st_uid != user() || found.st_mode & 0o077 != 0 {
        return Err(Errno::PERM.into());
    }
    let mut key = [0; KEY_BYTES];
    std::fs::File::from(file).read_exact(&mut key)?;
    Ok(Some(key))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::bootstrap::UniqueId;
    use crate::bootstrap::local::socket::{UnixSocket, listen};
    use crate::bootstrap::local::{Contribution, Member, exchange, rendezvous_name};
    use std::io::stderr;
    use std::os::unix::fs::PermissionsExt;
    use std::time::{Duration, Instant};

    fn place(test: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ringcomm-{test}-{}", std::process::id()))
    }

    #[test]
    fn all_who_ask_at_once_get_one_key() {
        let path = place("key");
        let asked = || {
            let folder = made_folder(&path).unwrap();
            key(&folder).unwrap()
        };
        let keys: Vec<_> = std::thread::scope(|scope| {
            let asking: Vec<_> = (0..8).map(|_| scope.spawn(asked)).collect();
            asking.into_iter().map(|one| one.join().unwrap()).collect()
        });
        assert!(keys.iter().all(|key| *key == keys[0]) && keys[0] != [0; KEY_BYTES]);
        assert_eq!(std::fs::read_dir(&path).unwrap().count(), 1, "nothing else is left");
        std::fs::set_permissions(path.join(KEY), PermissionsExt::from_mode(0o644)).unwrap();
        assert!(key(&open_folder(&path).unwrap()).is_err(), "others may have read it");
        std::fs::remove_dir_all(&path).unwrap();
    }

    #[test]
    fn ranks_meet_though_another_user_holds_their_name() {
        let id = UniqueId::generate().unwrap();
        let name = rendezvous_name(&id);
        let squat = move || listen(&name).unwrap().expect("nobody holds it");
        let Some(_holding) = UnixSocket::made_by(user() + 1, squat) else {
            // Past the harness, which keeps what a test prints that passes.
            let test = "ranks_meet_though_another_user_holds_their_name";
            let why = "only root may act as another user";
            let _ = writeln!(stderr(), "skipped: {}::{test}: {why}", module_path!());
            return;
        };
        let deadline = Instant::now() + Duration::from_secs(60);
        let meet = |rank| {
            let mine = Contribution { payload: vec![rank as u8], process: 1, fds: Vec::new() };
            exchange(&id, rank, 2, mine, deadline).unwrap()
        };
        let members = std::thread::scope(|scope| {
            let other = scope.spawn(|| meet(1));
            (meet(0), other.join().unwrap())
        });
        let payloads = |members: &[Member]| -> Vec<_> {
            members.iter().map(|member| member.payload.clone()).collect()
        };
        assert_eq!(payloads(&members.0), [[0], [1]]);
        assert_eq!(payloads(&members.1), [[0], [1]]);
    }

    #[test]
    fn a_folder_that_others_enter_or_own_is_refused() {
        let path = place("folder");
        std::fs::create_dir(&path).unwrap();
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o711)).unwrap();
        assert!(made_folder(&path).unwrap_err().contains("can be entered by others"));
        std::fs::set_permissions(&path, PermissionsExt::from_mode(0o700)).unwrap();
        made_folder(&path).unwrap();
        // Root alone can give a folder away.
        if std::os::unix::fs::chown(&path, Some(user() + 1), None).is_ok() {
            let why = made_folder(&path).unwrap_err();
            assert!(why.contains(&format!("belongs to user {}", user() + 1)), "{why}");
        }
        std::fs::remove_dir(&path).unwrap();
        let link = place("link");
        std::os::unix::fs::symlink("/", &link).unwrap();
        assert!(made_folder(&link).is_err());
        std::fs::remove_file(&link).unwrap();
    }
}
