//! A file of every operation as it happens, for those who ask for one: RINGCOMM_TIMELINE, or
//! Horovod's HOROVOD_TIMELINE.
//!
//! The file is a JSON array of trace events, a beginning and an end for each operation. Every event
//! is one write that replaces the closing bracket by itself and another one, so what a process
//! leaves is valid JSON wherever it died, and the operation that it died in has only begun.

use super::flight_dump::{self, FlightDump};
use crate::cycle_counter;
use crate::error::{Error, Result};
use crate::executor::control_block::Record;
use crate::executor::links::Reach;
use crate::fork;
use crate::os::descriptors::above_stdio;
use crate::os::environment;
use crate::os::thread_signals::without_size_signal;
use crate::sync::Mutex;
use std::fs::{File, TryLockError};
use std::os::unix::fs::FileExt;
use std::sync::Arc;

/// What follows the last event.
const END: &str = "\n]\n";

struct Timeline {
    file: File,
    /// Where [`END`] begins.
    end: u64,
}

/// What came of opening it: the same for all ranks of the process.
struct OpenedTimeline {
    /// The process that it is of, as [`fork::generation`] tells them apart.
    born: u32,
    timeline: Result<Option<Arc<Mutex<Timeline>>>>,
}

/// This process's timeline, once there is one.
static TIMELINE: fork::Once<OpenedTimeline> = fork::Once::new();

/// A communicator's track on the timeline.
pub struct TimelineWriter {
    timeline: Arc<Mutex<Timeline>>,
    process: usize,
    number: u32,
    born: u32,
}

/// The file that the environment asks for; rank 0 writes to that name, others append their rank,
/// which is the launcher's where there is one: a process may begin with a communicator of threads,
/// or of some of the ranks.
fn path(flight: &FlightDump, reach: &[Reach]) -> Option<String> {
    let variable = |name| environment::variable(name).filter(|path: &String| !path.is_empty());
    // Horovod's word for a timeline that the program itself starts.
    let of_horovod = || variable("HOROVOD_TIMELINE").filter(|path| path != "DYNAMIC");
    let path = variable("RINGCOMM_TIMELINE").or_else(of_horovod)?;
    // Ranks that are threads share a file.
    let here = reach.iter().filter(|reach| **reach == Reach::Process).count();
    let own = || if here > 1 { 0 } else { flight.trace_pid() };
    let rank = flight_dump::launcher_rank().unwrap_or_else(own);
    Some(if rank == 0 { path } else { format!("{path}.{rank}") })
}

impl TimelineWriter {
    /// The track of a communicator, where the environment asks for a timeline. A forked child's
    /// communicators have none: the file is its parent's.
    pub fn new(flight: &FlightDump, reach: &[Reach]) -> Result<Option<TimelineWriter>> {
        let opened = TIMELINE.get_or_make(|| {
            let open = |path: String| match Timeline::create(&path) {
                Ok(timeline) => Ok(Arc::new(Mutex::new(timeline))),
                Err(error) => Err(Error::System {
                    what: format!("writing the timeline {path}"),
                    errno: error.raw_os_error().unwrap_or(0),
                }),
            };
            OpenedTimeline {
                born: fork::generation(),
                timeline: path(flight, reach).map(open).transpose(),
            }
        });
        let born = opened.born;
        // A forked child must not ask for the lock, which a thread of its parent may have held.
        if born != fork::generation() {
            return Ok(None);
        }
        let Some(timeline) = &opened.timeline.clone()? else { return Ok(None) };
        let (process, number) = (flight.trace_pid(), flight.number);
        timeline.lock().write(&flight.names());
        Ok(Some(TimelineWriter { timeline: timeline.clone(), process, number, born }))
    }

    /// An operation has begun.
    pub fn begun(&self, record: &Record) {
        let (call, arguments) = flight_dump::described(record);
        self.write(&format!(
            "{{\"ph\":\"B\",\"name\":{call},\"cat\":\"ringcomm\",\"pid\":{},\"tid\":{},\
             \"ts\":{:.3},\"args\":{arguments}}}",
            self.process,
            self.number,
            cycle_counter::monotonic_us()
        ));
    }

    /// The operation that began last has ended.
    pub fn ended(&self, is_complete: bool) {
        self.write(&format!(
            "{{\"ph\":\"E\",\"pid\":{},\"tid\":{},\"ts\":{:.3},\"args\":{{\"complete\":{}}}}}",
            self.process,
            self.number,
            cycle_counter::monotonic_us(),
            is_complete
        ));
    }

    fn write(&self, event: &str) {
        if self.born == fork::generation() {
            self.timeline.lock().write(event);
        }
    }
}

impl Timeline {
    fn create(path: &str) -> std::io::Result<Timeline> {
        let options = File::options().write(true).create(true).truncate(false).clone();
        let open = |path: &str| -> std::io::Result<File> {
            Ok(File::from(above_stdio(options.open(path)?.into())?))
        };
        let mut file = open(path)?;
        // Whoever writes to it keeps it locked, also without a launcher that numbers processes. A
        // file system without locks has no more to say.
        if matches!(file.try_lock(), Err(TryLockError::WouldBlock)) {
            file = open(&format!("{path}.{}", std::process::id()))?;
        }
        file.set_len(0)?;
        without_size_signal(|| file.write_all_at(format!("[{END}").as_bytes(), 0))?;
        Ok(Timeline { file, end: 1 })
    }

    /// Add events. A full disk stops the timeline, not the program.
    fn write(&mut self, events: &str) {
        let comma = if self.end == 1 { "\n" } else { ",\n" };
        let text = format!("{comma}{events}{END}");
        if without_size_signal(|| self.file.write_all_at(text.as_bytes(), self.end)).is_ok() {
            self.end += (comma.len() + events.len()) as u64;
        }
    }
}
