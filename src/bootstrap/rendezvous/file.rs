//! Rendezvous through a file: rank 0 leaves the id there, the others wait for it.
//!
//! The file appears whole or not at all (written aside, then renamed), only its user can read it,
//! and it goes when the ranks have met. One that a crashed job left behind must send nobody
//! anywhere, so a reader believes a file only if it is of its job, its size and its turn, and if
//! its writer lives. On the writer's machine the process table says so; elsewhere only the writer
//! itself can, by answering at the id's address. There are no locks, which network file systems
//! lose, and no clock is compared with another's.

use crate::bootstrap::process;
use crate::bootstrap::unique_id::UniqueId;
use crate::error::{Error, Result};
use crate::host;
use std::fs;
use std::io::{ErrorKind, Read, Write};
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

const TITLE: &str = "ringcomm rendezvous 1";
/// Most bytes of such a file that are looked at; one with a long job's name has a thousand.
const MOST: u64 = 16 << 10;
/// Pauses between looks: from what a local file system answers in, to what a thousand ranks may ask
/// of a file server.
const PAUSES: (Duration, Duration) = (Duration::from_millis(1), Duration::from_millis(100));

/// Which rendezvous a file is for: all of it must be the same on every rank.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct FileRendezvous {
    /// In one line, as a file has it.
    job: String,
    nranks: usize,
    /// How many times these ranks have met here before.
    turn: u64,
}

impl FileRendezvous {
    pub fn new(job: &str, nranks: usize, turn: u64) -> FileRendezvous {
        FileRendezvous { job: plain(job), nranks, turn }
    }
}

/// The same in one line.
fn plain(text: &str) -> String {
    text.replace(['\n', '\r'], " ")
}

/// What a file says.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Note {
    rendezvous: FileRendezvous,
    writer: Writer,
    id: UniqueId,
}

/// The process that wrote a file.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Writer {
    host: String,
    boot: String,
    /// Where its process number means something.
    namespace: String,
    pid: u32,
    started: u64,
}

impl Writer {
    fn this() -> Result<Writer> {
        let pid = std::process::id();
        Ok(Writer {
            host: host::name().to_string(),
            boot: process::boot_id()?,
            namespace: process::pid_namespace(),
            pid,
            started: process::started(pid).unwrap_or(0),
        })
    }

    /// Whether it lives; `None` where this machine cannot know.
    fn lives(&self) -> Result<Option<bool>> {
        let here = self.boot == process::boot_id()? && self.namespace == process::pid_namespace();
        Ok(here.then(|| process::started(self.pid) == Some(self.started)))
    }
}

impl Note {
    fn write(&self) -> String {
        let Note { rendezvous, writer, id } = self;
        let hex: String = id.as_bytes().iter().map(|byte| format!("{byte:02x}")).collect();
        format!(
            "{TITLE}\njob={}\nnranks={}\nturn={}\nhost={}\nboot={}\nnamespace={}\npid={}\n\
             started={}\nid={hex}\n",
            rendezvous.job,
            rendezvous.nranks,
            rendezvous.turn,
            plain(&writer.host),
            writer.boot,
            writer.namespace,
            writer.pid,
            writer.started
        )
    }

    /// `None` where it is not such a file, or not a whole one.
    fn read(text: &str) -> Option<Note> {
        let mut lines = text.strip_suffix('\n')?.split('\n');
        (lines.next()? == TITLE).then_some(())?;
        let mut field = |name: &str| lines.next()?.strip_prefix(name)?.strip_prefix('=');
        let rendezvous = FileRendezvous {
            job: field("job")?.to_string(),
            nranks: field("nranks")?.parse().ok()?,
            turn: field("turn")?.parse().ok()?,
        };
        let writer = Writer {
            host: field("host")?.to_string(),
            boot: field("boot")?.to_string(),
            namespace: field("namespace")?.to_string(),
            pid: field("pid")?.parse().ok()?,
            started: field("started")?.parse().ok()?,
        };
        let hex = field("id").filter(|hex| hex.len() == 256 && hex.is_ascii())?;
        let mut bytes = [0; 128];
        for (byte, digits) in bytes.iter_mut().zip(hex.as_bytes().chunks_exact(2)) {
            *byte = u8::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()?;
        }
        let id = UniqueId::from_bytes(&bytes).ok()?;
        Some(Note { rendezvous, writer, id })
    }
}

/// A file's text, read and written again.
#[cfg(any(test, fuzzing))]
pub fn rewritten(text: &str) -> Option<String> {
    Note::read(text).map(|note| note.write())
}

/// A file that this process has written; gone when this value is.
#[derive(Debug)]
pub(super) struct Published {
    path: PathBuf,
    text: String,
}

impl Drop for Published {
    /// Where another job has put its own file there meanwhile, that stays.
    fn drop(&mut self) {
        if fs::read_to_string(&self.path).is_ok_and(|text| text == self.text) {
            // If it cannot go, the next reader finds its writer dead.
            let _ = fs::remove_file(&self.path);
        }
    }
}

fn failed(path: &Path, what: &str, error: &std::io::Error) -> Error {
    let what = format!(
        "{what} the rendezvous file {} (its folder must exist and be yours to write, on every \
         host)",
        path.display()
    );
    match error.raw_os_error() {
        Some(errno) => Error::System { what, errno },
        None => Error::usage(format!("{what}: {error}")),
    }
}

/// Leave `id` at `path`, in the place of whatever is there.
pub(super) fn publish(
    path: &Path,
    rendezvous: &FileRendezvous,
    id: &UniqueId,
) -> Result<Published> {
    let note = Note { rendezvous: rendezvous.clone(), writer: Writer::this()?, id: id.clone() };
    let text = note.write();
    let mut draw = [0; 8];
    process::random(&mut draw)?;
    let name = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
    let aside = path.with_file_name(format!(".{name}.{:016x}", u64::from_le_bytes(draw)));
    let written = fs::File::options()
        .write(true)
        .create_new(true)
        .mode(0o600)
        .open(&aside)
        .and_then(|mut file| {
            file.write_all(text.as_bytes())?;
            // What others see under the name must be there when they do, also on another host.
            file.sync_all()
        })
        .and_then(|()| fs::rename(&aside, path));
    match written {
        Ok(()) => Ok(Published { path: path.to_path_buf(), text }),
        Err(error) => {
            let _ = fs::remove_file(&aside);
            Err(failed(path, "writing", &error))
        }
    }
}

/// What a look at the file came to: the id, or why there is none yet.
enum Look {
    Id(UniqueId),
    NotYet(String),
}

/// Wait until rank 0 has left the id of this rendezvous at `path`. `answers` asks the writer of an
/// id, on whichever host it is.
pub(super) fn await_id(
    path: &Path,
    rendezvous: &FileRendezvous,
    answers: &dyn Fn(&UniqueId) -> Result<bool>,
    deadline: Instant,
) -> Result<UniqueId> {
    let started = Instant::now();
    let mut pause = PAUSES.0;
    loop {
        let why = match look(path, rendezvous, answers)? {
            Look::Id(id) => return Ok(id),
            Look::NotYet(why) => why,
        };
        if Instant::now() >= deadline {
            return Err(Error::NotMet {
                place: format!("the rendezvous file {}", path.display()),
                why: format!("missing of {} ranks: [0]; {why}", rendezvous.nranks),
                waited_ms: started.elapsed().as_millis() as u64,
            });
        }
        std::thread::sleep(pause.min(deadline.saturating_duration_since(Instant::now())));
        pause = (pause * 2).min(PAUSES.1);
    }
}

fn look(
    path: &Path,
    rendezvous: &FileRendezvous,
    answers: &dyn Fn(&UniqueId) -> Result<bool>,
) -> Result<Look> {
    let not_yet = |why: String| Ok(Look::NotYet(why));
    let mut file = match fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == ErrorKind::NotFound => {
            // A network file system remembers that there was none until its folder is read anew;
            // and without the folder no file will ever come.
            let folder = path.parent().unwrap_or(Path::new("/"));
            fs::read_dir(folder).map_err(|error| failed(path, "looking for", &error))?;
            return not_yet("rank 0 has not written it".into());
        }
        Err(error) => return Err(failed(path, "reading", &error)),
    };
    let found = file.metadata().map_err(|error| failed(path, "reading", &error))?;
    if found.uid() != process::user() {
        return Err(Error::usage(format!(
            "the rendezvous file {} belongs to user {}; choose a path that only you write",
            path.display(),
            found.uid()
        )));
    }
    if !found.is_file() || found.mode() & 0o077 != 0 {
        return not_yet(format!("what is there has mode {:o}, none of ours", found.mode()));
    }
    let mut text = String::new();
    let read = Read::by_ref(&mut file).take(MOST).read_to_string(&mut text);
    let Some(note) = read.ok().and_then(|_| Note::read(&text)) else {
        return not_yet("what is there is no rendezvous of this version".into());
    };
    let theirs = &note.rendezvous;
    if theirs != rendezvous {
        return not_yet(format!(
            "what is there is for {} ranks of job {:?}, rendezvous {}; this is for {} of {:?}, \
             rendezvous {}",
            theirs.nranks,
            theirs.job,
            theirs.turn,
            rendezvous.nranks,
            rendezvous.job,
            rendezvous.turn
        ));
    }
    let Writer { host, pid, .. } = &note.writer;
    let lives = match note.writer.lives()? {
        Some(lives) => lives,
        None => answers(&note.id)?,
    };
    match lives {
        true => Ok(Look::Id(note.id)),
        false => not_yet(format!(
            "what is there is stale: its writer, process {pid} of {host}, is \
                                  gone"
        )),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    fn path(name: &str) -> PathBuf {
        std::env::temp_dir().join(format!("ringcomm-{name}-{}", std::process::id()))
    }

    fn rendezvous() -> FileRendezvous {
        FileRendezvous::new("a job\nof two lines", 2, 0)
    }

    /// One try, asking nobody.
    fn try_once(path: &Path, rendezvous: &FileRendezvous) -> std::result::Result<UniqueId, String> {
        let never =
            |_: &UniqueId| -> Result<bool> { panic!("asked about a process of this machine") };
        await_id(path, rendezvous, &never, Instant::now()).map_err(|error| error.to_string())
    }

    #[test]
    fn an_id_goes_through_a_file_that_goes_with_its_writer() {
        let (path, id) = (path("through"), UniqueId::generate().unwrap());
        let rendezvous = rendezvous();
        let text = try_once(&path, &rendezvous).unwrap_err();
        assert!(text.contains("has not written it") && text.contains("through"), "{text}");
        let published = publish(&path, &rendezvous, &id).unwrap();
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(try_once(&path, &rendezvous).unwrap(), id);
        // Replaced by the next: the first one's end leaves the second's file alone.
        let next = UniqueId::generate().unwrap();
        let second = publish(&path, &rendezvous, &next).unwrap();
        drop(published);
        assert_eq!(try_once(&path, &rendezvous).unwrap(), next);
        drop(second);
        assert!(!path.exists());
    }

    #[test]
    fn a_note_survives_its_text_and_no_other_text_is_one() {
        let note = Note {
            rendezvous: FileRendezvous { job: "x=y z".into(), ..rendezvous() },
            writer: Writer::this().unwrap(),
            id: UniqueId::generate().unwrap(),
        };
        let text = note.write();
        assert_eq!(Note::read(&text).unwrap(), note);
        // Cut anywhere it is none; so it is if a line is missing or another title stands above.
        assert!((0..text.len()).all(|end| Note::read(&text[..end]).is_none()));
        for at in 0..text.lines().count() {
            let mut lines: Vec<&str> = text.lines().collect();
            lines.remove(at);
            assert!(Note::read(&(lines.join("\n") + "\n")).is_none(), "without line {at}");
        }
        assert!(Note::read(&text.replace("id=", "id=é")).is_none());
    }

    #[test]
    fn a_file_of_another_meeting_or_a_dead_writer_is_waited_out() {
        let (path, id) = (path("stale"), UniqueId::generate().unwrap());
        let mine = FileRendezvous { job: "mine".into(), nranks: 2, turn: 1 };
        for other in [
            FileRendezvous { job: "theirs".into(), ..mine.clone() },
            FileRendezvous { nranks: 3, ..mine.clone() },
            FileRendezvous { turn: 0, ..mine.clone() },
        ] {
            let _published = publish(&path, &other, &id).unwrap();
            let text = try_once(&path, &mine).unwrap_err();
            assert!(text.contains("what is there is for"), "{text}");
        }
        let write = |writer: Writer| {
            let note = Note { rendezvous: mine.clone(), writer, id: id.clone() };
            fs::write(&path, note.write()).unwrap();
            fs::set_permissions(&path, PermissionsExt::from_mode(0o600)).unwrap();
        };
        let this = Writer::this().unwrap();
        // The number is in use again, by a process that was started later.
        write(Writer { started: this.started - 1, ..this.clone() });
        let text = try_once(&path, &mine).unwrap_err();
        assert!(text.contains("stale") && text.contains(&this.pid.to_string()), "{text}");
        // Of another machine only the writer's answer counts.
        write(Writer { boot: "another".into(), ..this });
        let ask = |answer: bool| await_id(&path, &mine, &|_| Ok(answer), Instant::now());
        assert_eq!(ask(true).unwrap(), id);
        assert!(ask(false).unwrap_err().to_string().contains("stale"));
        fs::remove_file(&path).unwrap();
    }

    #[test]
    fn files_that_others_could_have_written_are_not_believed() {
        let (path, id) = (path("mode"), UniqueId::generate().unwrap());
        let mine = FileRendezvous { job: String::new(), ..rendezvous() };
        let _published = publish(&path, &mine, &id).unwrap();
        fs::set_permissions(&path, PermissionsExt::from_mode(0o644)).unwrap();
        let text = try_once(&path, &mine).unwrap_err();
        assert!(text.contains("mode 100644"), "{text}");
        // Root alone can give a file away.
        if std::os::unix::fs::chown(&path, Some(process::user() + 1), None).is_ok() {
            let later = Instant::now() + Duration::from_secs(60);
            let refused = await_id(&path, &mine, &|_| Ok(true), later).unwrap_err().to_string();
            assert!(refused.contains("belongs to user"), "{refused}");
        }
    }

    #[test]
    fn a_folder_that_is_not_there_is_named_at_once() {
        let path = path("nowhere").join("file");
        let later = Instant::now() + Duration::from_secs(60);
        let text = await_id(&path, &rendezvous(), &|_| Ok(true), later).unwrap_err().to_string();
        assert!(text.contains("nowhere") && text.contains("folder must exist"), "{text}");
        let id = UniqueId::generate().unwrap();
        let text = publish(&path, &rendezvous(), &id).unwrap_err().to_string();
        assert!(text.contains("nowhere") && text.contains("folder must exist"), "{text}");
    }
}
