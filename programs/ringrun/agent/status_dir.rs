//! The folder in which an agent's ranks answer `ringrun --status`: made for one job, gone with it.
//!
//! Its name says user, job and agent. A file in it is locked as long as the agent lives, which the
//! kernel undoes however it dies, so a folder whose lock is free is left over and is removed by the
//! next agent.

use super::children;
use std::fs::{DirBuilder, File};
use std::io;
use std::os::unix::fs::{DirBuilderExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, SystemTime};

/// The variable that tells ranks of it.
pub const VARIABLE: &str = "RINGCOMM_STATUS_DIR";

const LOCK: &str = "lock";

/// The lock before it is locked: under its own name it would count as one that is left.
const NEW_LOCK: &str = "lock.new";

/// Between the folder and its lock an agent takes microseconds; a loaded machine no minute.
const UNLOCKED: Duration = Duration::from_secs(60);

/// An agent's own folder; dropping it removes it.
pub struct Folder {
    pub path: PathBuf,
    _lock: File,
}

/// A folder of some job of this user on this machine.
pub struct JobFolder {
    pub path: PathBuf,
    pub job: String,
    pub agent: u32,
    pub since: SystemTime,
}

/// Where folders are: the user's own place for such things, or everybody's.
fn places() -> Vec<PathBuf> {
    let own = std::env::var_os("XDG_RUNTIME_DIR").map(PathBuf::from);
    own.into_iter().filter(|path| path.is_dir()).chain([PathBuf::from("/tmp")]).collect()
}

fn beginning() -> String {
    format!("ringrun-{}-", children::user())
}

impl Folder {
    /// Make one, and remove what others left over.
    pub fn make(job: &str) -> io::Result<Folder> {
        for place in places() {
            of_place(&place).for_each(|found| remove_if_left(&found.path));
        }
        let mut refused = io::Error::from(io::ErrorKind::NotFound);
        for place in places() {
            let path = place.join(format!("{}{job}-{}", beginning(), std::process::id()));
            match DirBuilder::new().mode(0o700).create(&path) {
                Ok(()) => {
                    let lock = lock(&path)?;
                    return Ok(Folder { path, _lock: lock });
                }
                Err(error) => refused = error,
            }
        }
        Err(refused)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        // What cannot be removed now is left over, and the next agent's business.
        let _ = std::fs::remove_dir_all(&self.path);
    }
}

/// The folders in a place that are this user's alone.
fn of_place(place: &Path) -> impl Iterator<Item = JobFolder> {
    let entries = std::fs::read_dir(place).into_iter().flatten().flatten();
    let beginning = beginning();
    entries.filter_map(move |entry| {
        let name = entry.file_name().into_string().ok()?;
        let (job, agent) = name.strip_prefix(&beginning)?.rsplit_once('-')?;
        let about = entry.path().symlink_metadata().ok()?;
        let private = about.is_dir() && about.uid() == children::user() && about.mode() & 0o77 == 0;
        let since = entry.path().join(LOCK).metadata().or(Ok::<_, io::Error>(about));
        private.then(|| JobFolder {
            path: entry.path(),
            job: job.to_string(),
            agent: agent.parse().unwrap_or(0),
            since: since.and_then(|about| about.modified()).unwrap_or(SystemTime::UNIX_EPOCH),
        })
    })
}

/// Lock a folder for this process.
fn lock(path: &Path) -> io::Result<File> {
    let lock = File::create(path.join(NEW_LOCK))?;
    lock.lock()?;
    std::fs::rename(path.join(NEW_LOCK), path.join(LOCK))?;
    Ok(lock)
}

fn is_left(path: &Path) -> bool {
    match File::open(path.join(LOCK)) {
        Ok(lock) => lock.try_lock().is_ok(),
        Err(_) => {
            let age = path.metadata().and_then(|about| about.modified()).map(|at| at.elapsed());
            age.is_ok_and(|age| age.is_ok_and(|age| age > UNLOCKED))
        }
    }
}

fn remove_if_left(path: &Path) {
    if is_left(path) {
        // Another agent may be removing it too.
        let _ = std::fs::remove_dir_all(path);
    }
}

/// The folders of this user's jobs that run here, the newest first.
pub fn all() -> Vec<JobFolder> {
    let mut all: Vec<JobFolder> = places().iter().flat_map(|place| of_place(place)).collect();
    all.retain(|found| !is_left(&found.path));
    all.sort_by_key(|found| std::cmp::Reverse(found.since));
    all
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

    /// Another agent looks at a folder while its own makes it.
    #[test]
    fn a_folder_is_never_taken_for_one_that_is_left_while_it_is_made() {
        let name = format!("ringrun-test-{}", std::process::id());
        let place = std::env::temp_dir().join(name);
        let path = place.join("folder");
        std::fs::create_dir_all(&place).unwrap();
        let over = AtomicBool::new(false);
        std::thread::scope(|scope| {
            let seen = scope.spawn(|| {
                let mut seen = false;
                while !over.load(Relaxed) {
                    // As soon as the lock is there. It is gone before it is unlocked, and its
                    // number is nobody else's as long as it is open here.
                    if let Ok(lock) = File::open(path.join(LOCK)) {
                        let is_free = lock.try_lock().is_ok();
                        let number = lock.metadata().unwrap().ino();
                        let there = path.join(LOCK).metadata();
                        seen |= is_free && there.is_ok_and(|there| there.ino() == number);
                    }
                }
                seen
            });
            for _ in 0..3000 {
                std::fs::create_dir(&path).unwrap();
                let held = lock(&path).unwrap();
                std::fs::remove_dir_all(&path).unwrap();
                drop(held);
            }
            over.store(true, Relaxed);
            assert!(!seen.join().unwrap());
        });
        std::fs::remove_dir_all(&place).unwrap();
    }
}
