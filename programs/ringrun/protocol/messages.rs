//! What the launcher and its agents say to each other.

use super::frame::{Read, Reader, Variable, Writer};
use std::time::Duration;

/// Which of a process's two outputs.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Stream {
    Output,
    Error,
}

impl Stream {
    pub fn name(self) -> &'static str {
        match self {
            Stream::Output => "stdout",
            Stream::Error => "stderr",
        }
    }
}

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ended {
    Code(i32),
    Signal(i32),
}

impl Ended {
    /// Whether somebody else ended it, or a fault. An abort is how a program ends that does not
    /// handle an error, and counts as an exit.
    pub fn is_a_kill(self) -> bool {
        matches!(self, Ended::Signal(signal) if signal != libc::SIGABRT)
    }
}

/// What an agent is to start.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Job {
    pub command: Vec<Vec<u8>>,
    pub directory: Vec<u8>,
    /// What the user forwards to every rank.
    pub forwarded: Vec<Variable>,
    pub ranks: Vec<RankJob>,
    /// The rank that gets the launcher's standard input, if it is here.
    pub input_rank: Option<u32>,
    /// A descriptor that the agent inherited: ranks write to it and to the agent's standard error
    /// themselves.
    pub raw_output: Option<u32>,
    /// From asking the ranks to end until killing them, should the launcher be gone.
    pub grace: Duration,
    /// The launcher is far away: its silence means that it is gone.
    pub remote: bool,
    /// Ranks get ringcomm's library where they ask for NCCL's.
    pub nccl: bool,
    /// Python ranks get ringcomm where they import Horovod or apex.
    pub compat: bool,
    /// So many ranks that fail are replaced by newcomers of the job.
    pub replacements: u32,
}

#[derive(Clone, Debug, Default, PartialEq)]
pub struct RankJob {
    pub rank: u32,
    pub local_size: u32,
    pub variables: Vec<Variable>,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ToAgent {
    Job(Job),
    Signal(i32),
    /// Standard input; never more at once than the agent has acknowledged with `Taken`.
    Input(Vec<u8>),
    InputEnd,
    /// The launcher lives.
    Ping,
}

#[derive(Clone, Debug, PartialEq)]
pub enum ToLauncher {
    Started {
        rank: u32,
        pid: u32,
    },
    Output {
        rank: u32,
        stream: Stream,
        bytes: Vec<u8>,
    },
    /// The rank has failed, and a newcomer was started in its place.
    Replaced {
        rank: u32,
        ended: Ended,
        pid: u32,
    },
    /// Nothing more comes from this stream.
    End {
        rank: u32,
        stream: Stream,
    },
    Exited {
        rank: u32,
        ended: Ended,
    },
    /// The rank could not be started; `status` is what a shell would give.
    NotStarted {
        rank: u32,
        why: Vec<u8>,
        status: u8,
    },
    /// So many bytes of input were used up.
    Taken(u32),
}

fn numbers_of(ended: Ended) -> (u32, u32) {
    match ended {
        Ended::Code(code) => (0, code as u32),
        Ended::Signal(signal) => (1, signal as u32),
    }
}

fn ended_of(by_signal: u32, number: u32) -> Ended {
    match by_signal {
        0 => Ended::Code(number as i32),
        _ => Ended::Signal(number as i32),
    }
}

fn number_of(stream: Stream) -> u32 {
    match stream {
        Stream::Output => 0,
        Stream::Error => 1,
    }
}

fn stream_of(number: u32) -> Stream {
    if number == 0 { Stream::Output } else { Stream::Error }
}

impl ToAgent {
    pub fn frame(&self) -> Vec<u8> {
        match self {
            ToAgent::Job(job) => Writer::new(0)
                .list(&job.command, |writer, word| writer.bytes(word))
                .bytes(&job.directory)
                .variables(&job.forwarded)
                .list(&job.ranks, |writer, rank| {
                    writer.number(rank.rank).number(rank.local_size).variables(&rank.variables)
                })
                .perhaps(job.input_rank)
                .perhaps(job.raw_output)
                .number(job.grace.as_millis().min(u32::MAX.into()) as u32)
                .number(u32::from(job.remote))
                .number(u32::from(job.nccl))
                .number(u32::from(job.compat))
                .number(job.replacements),
            ToAgent::Signal(signal) => Writer::new(1).number(*signal as u32),
            ToAgent::Input(bytes) => Writer::new(2).bytes(bytes),
            ToAgent::InputEnd => Writer::new(3),
            ToAgent::Ping => Writer::new(4),
        }
        .frame()
    }

    pub fn parse(body: &[u8]) -> Read<ToAgent> {
        let mut reader = Reader::new(body);
        let message = match reader.byte()? {
            0 => ToAgent::Job(Job {
                command: reader.list(Reader::bytes)?,
                directory: reader.bytes()?,
                forwarded: reader.variables()?,
                ranks: reader.list(|reader| {
                    Ok(RankJob {
                        rank: reader.number()?,
                        local_size: reader.number()?,
                        variables: reader.variables()?,
                    })
                })?,
                input_rank: reader.perhaps()?,
                raw_output: reader.perhaps()?,
                grace: Duration::from_millis(reader.number()?.into()),
                remote: reader.number()? != 0,
                nccl: reader.number()? != 0,
                compat: reader.number()? != 0,
                replacements: reader.number()?,
            }),
            1 => ToAgent::Signal(reader.number()? as i32),
            2 => ToAgent::Input(reader.bytes()?),
            3 => ToAgent::InputEnd,
            4 => ToAgent::Ping,
            other => return Err(format!("a message of kind {other}, which there is not")),
        };
        reader.end(message)
    }
}

impl ToLauncher {
    pub fn frame(&self) -> Vec<u8> {
        match self {
            ToLauncher::Started { rank, pid } => Writer::new(0).number(*rank).number(*pid),
            ToLauncher::Output { rank, stream, bytes } => {
                Writer::new(1).number(*rank).number(number_of(*stream)).bytes(bytes)
            }
            ToLauncher::End { rank, stream } => {
                Writer::new(2).number(*rank).number(number_of(*stream))
            }
            ToLauncher::Exited { rank, ended } => {
                let (by_signal, number) = numbers_of(*ended);
                Writer::new(3).number(*rank).number(by_signal).number(number)
            }
            ToLauncher::NotStarted { rank, why, status } => {
                Writer::new(4).number(*rank).bytes(why).number(u32::from(*status))
            }
            ToLauncher::Taken(bytes) => Writer::new(5).number(*bytes),
            ToLauncher::Replaced { rank, ended, pid } => {
                let (by_signal, number) = numbers_of(*ended);
                Writer::new(6).number(*rank).number(by_signal).number(number).number(*pid)
            }
        }
        .frame()
    }

    pub fn parse(body: &[u8]) -> Read<ToLauncher> {
        let mut reader = Reader::new(body);
        let message = match reader.byte()? {
            0 => ToLauncher::Started { rank: reader.number()?, pid: reader.number()? },
            1 => ToLauncher::Output {
                rank: reader.number()?,
                stream: stream_of(reader.number()?),
                bytes: reader.bytes()?,
            },
            2 => ToLauncher::End { rank: reader.number()?, stream: stream_of(reader.number()?) },
            3 => ToLauncher::Exited {
                rank: reader.number()?,
                ended: ended_of(reader.number()?, reader.number()?),
            },
            4 => ToLauncher::NotStarted {
                rank: reader.number()?,
                why: reader.bytes()?,
                status: reader.number()? as u8,
            },
            5 => ToLauncher::Taken(reader.number()?),
            6 => ToLauncher::Replaced {
                rank: reader.number()?,
                ended: ended_of(reader.number()?, reader.number()?),
                pid: reader.number()?,
            },
            other => return Err(format!("a message of kind {other}, which there is not")),
        };
        reader.end(message)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn job() -> Job {
        let variable = |name: &str| (name.as_bytes().to_vec(), vec![0xff, b'=', b'\n']);
        Job {
            command: vec![b"program".to_vec(), b"".to_vec(), vec![0xfe]],
            directory: b"/tmp".to_vec(),
            forwarded: vec![variable("A")],
            ranks: vec![RankJob { rank: 2, local_size: 1, variables: vec![variable("RANK")] }],
            input_rank: Some(2),
            raw_output: None,
            grace: Duration::from_millis(1500),
            remote: true,
            nccl: true,
            compat: true,
            replacements: 7,
        }
    }

    #[test]
    fn messages_survive_the_way() {
        let (stream, ended) = (Stream::Error, Ended::Signal(9));
        for message in [
            ToAgent::Job(job()),
            ToAgent::Signal(15),
            ToAgent::Input(vec![0; 9]),
            ToAgent::InputEnd,
            ToAgent::Ping,
        ] {
            assert_eq!(ToAgent::parse(&message.frame()[4..]), Ok(message));
        }
        for message in [
            ToLauncher::Started { rank: 1, pid: 77 },
            ToLauncher::Output { rank: 1, stream, bytes: vec![1, 2] },
            ToLauncher::End { rank: 1, stream: Stream::Output },
            ToLauncher::Exited { rank: 1, ended },
            ToLauncher::Replaced { rank: 1, ended, pid: 78 },
            ToLauncher::Exited { rank: 1, ended: Ended::Code(3) },
            ToLauncher::NotStarted { rank: 1, why: b"no".to_vec(), status: 127 },
            ToLauncher::Taken(5),
        ] {
            assert_eq!(ToLauncher::parse(&message.frame()[4..]), Ok(message));
        }
    }

    #[test]
    fn a_cut_or_strange_message_is_an_error() {
        let frame = ToAgent::Job(job()).frame();
        for end in 4..frame.len() {
            assert!(ToAgent::parse(&frame[4..end]).is_err(), "cut at {end}");
        }
        assert!(ToAgent::parse(&[frame[4..].to_vec(), vec![0]].concat()).is_err());
        assert!(ToAgent::parse(&[99]).is_err() && ToLauncher::parse(&[99]).is_err());
    }
}
