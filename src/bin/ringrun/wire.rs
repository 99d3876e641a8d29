//! What the launcher and its agents say to each other, as bytes.
//!
//! An agent first writes a greeting, a line that every version can read; then both sides send
//! frames: four bytes of length, a byte that says what follows, the fields. Numbers are little
//! endian; texts are bytes with their length, because neither arguments nor variables need be
//! UTF-8.

use crate::environment::Variable;
use crate::lines::Stream;

/// Longest frame. A job's description holds its variables, which the kernel limits to a few
/// megabytes for every process; anything longer did not come from an agent.
const MOST_FRAME_BYTES: usize = 64 << 20;

/// How a process ended.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Ended {
    Code(i32),
    Signal(i32),
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
    /// The launcher is far away: its silence means that it is gone.
    pub remote: bool,
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

/// Writes the fields of one frame.
struct Writer(Vec<u8>);

impl Writer {
    fn new(kind: u8) -> Writer {
        Writer(vec![0, 0, 0, 0, kind])
    }

    fn number(mut self, number: u32) -> Writer {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    fn bytes(self, bytes: &[u8]) -> Writer {
        let mut with_length = self.number(bytes.len() as u32);
        with_length.0.extend_from_slice(bytes);
        with_length
    }

    /// A number that may be missing.
    fn perhaps(self, number: Option<u32>) -> Writer {
        match number {
            Some(number) => self.number(1).number(number),
            None => self.number(0),
        }
    }

    fn list<T>(self, all: &[T], each: impl Fn(Writer, &T) -> Writer) -> Writer {
        all.iter().fold(self.number(all.len() as u32), each)
    }

    fn variables(self, all: &[Variable]) -> Writer {
        self.list(all, |writer, (name, value)| writer.bytes(name).bytes(value))
    }

    fn frame(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Reads the fields of one frame; whatever does not fit is an error.
struct Reader<'a>(&'a [u8]);

type Read<T> = Result<T, String>;

impl Reader<'_> {
    fn byte(&mut self) -> Read<u8> {
        let (first, rest) = self.0.split_first().ok_or("a message ends too early")?;
        self.0 = rest;
        Ok(*first)
    }

    fn number(&mut self) -> Read<u32> {
        let (first, rest) = self.0.split_first_chunk().ok_or("a message ends too early")?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*first))
    }

    fn bytes(&mut self) -> Read<Vec<u8>> {
        let length = self.number()? as usize;
        let (first, rest) = self.0.split_at_checked(length).ok_or("a message ends too early")?;
        self.0 = rest;
        Ok(first.to_vec())
    }

    fn perhaps(&mut self) -> Read<Option<u32>> {
        match self.number()? {
            0 => Ok(None),
            _ => self.number().map(Some),
        }
    }

    fn list<T>(&mut self, each: impl Fn(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let length = self.number()?;
        // Not allocated ahead: the length is the sender's word.
        (0..length).map(|_| each(self)).collect()
    }

    fn variables(&mut self) -> Read<Vec<Variable>> {
        self.list(|reader| Ok((reader.bytes()?, reader.bytes()?)))
    }

    fn stream(&mut self) -> Read<Stream> {
        Ok(if self.number()? == 0 { Stream::Output } else { Stream::Error })
    }

    fn end<T>(self, value: T) -> Read<T> {
        if self.0.is_empty() { Ok(value) } else { Err("a message is too long".into()) }
    }
}

fn number_of(stream: Stream) -> u32 {
    match stream {
        Stream::Output => 0,
        Stream::Error => 1,
    }
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
                .number(u32::from(job.remote)),
            ToAgent::Signal(signal) => Writer::new(1).number(*signal as u32),
            ToAgent::Input(bytes) => Writer::new(2).bytes(bytes),
            ToAgent::InputEnd => Writer::new(3),
            ToAgent::Ping => Writer::new(4),
        }
        .frame()
    }

    pub fn parse(body: &[u8]) -> Read<ToAgent> {
        let mut reader = Reader(body);
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
                remote: reader.number()? != 0,
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
                let (by_signal, number) = match ended {
                    Ended::Code(code) => (0, *code),
                    Ended::Signal(signal) => (1, *signal),
                };
                Writer::new(3).number(*rank).number(by_signal).number(number as u32)
            }
            ToLauncher::NotStarted { rank, why, status } => {
                Writer::new(4).number(*rank).bytes(why).number(u32::from(*status))
            }
            ToLauncher::Taken(bytes) => Writer::new(5).number(*bytes),
        }
        .frame()
    }

    pub fn parse(body: &[u8]) -> Read<ToLauncher> {
        let mut reader = Reader(body);
        let message = match reader.byte()? {
            0 => ToLauncher::Started { rank: reader.number()?, pid: reader.number()? },
            1 => ToLauncher::Output {
                rank: reader.number()?,
                stream: reader.stream()?,
                bytes: reader.bytes()?,
            },
            2 => ToLauncher::End { rank: reader.number()?, stream: reader.stream()? },
            3 => ToLauncher::Exited {
                rank: reader.number()?,
                ended: match (reader.number()?, reader.number()? as i32) {
                    (0, code) => Ended::Code(code),
                    (_, signal) => Ended::Signal(signal),
                },
            },
            4 => ToLauncher::NotStarted {
                rank: reader.number()?,
                why: reader.bytes()?,
                status: reader.number()? as u8,
            },
            5 => ToLauncher::Taken(reader.number()?),
            other => return Err(format!("a message of kind {other}, which there is not")),
        };
        reader.end(message)
    }
}

/// Bytes as they arrive, until they are frames.
#[derive(Default)]
pub struct Inbox {
    bytes: Vec<u8>,
    /// So many of them have been given out.
    used: usize,
}

impl Inbox {
    pub fn push(&mut self, bytes: &[u8]) {
        self.bytes.drain(..self.used);
        self.used = 0;
        self.bytes.extend_from_slice(bytes);
    }

    /// The next whole frame's body.
    pub fn next(&mut self) -> Read<Option<&[u8]>> {
        let rest = &self.bytes[self.used..];
        let Some((length, body)) = rest.split_first_chunk() else { return Ok(None) };
        let length = u32::from_le_bytes(*length) as usize;
        if length > MOST_FRAME_BYTES {
            return Err(format!("a message of {length} bytes, longer than any that is sent"));
        }
        if body.len() < length {
            return Ok(None);
        }
        self.used += 4 + length;
        Ok(Some(&body[..length]))
    }

    /// Take a greeting out of what has arrived, with what was said before it: a login shell's
    /// start-up files may print something.
    pub fn greeting(&mut self) -> Option<Greeting> {
        let at = self.bytes.windows(GREETING.len()).position(|window| window == GREETING)?;
        let rest = &self.bytes[at + GREETING.len()..];
        let end = rest.iter().position(|byte| *byte == b'\n')?;
        let line = String::from_utf8_lossy(&rest[..end]).into_owned();
        let mut words = line.split(' ');
        let version = words.next().unwrap_or("").to_string();
        let port = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        self.used = at + GREETING.len() + end + 1;
        Some(Greeting { version, port })
    }

    /// What has arrived and was not given out.
    pub fn rest(&self) -> &[u8] {
        &self.bytes[self.used..]
    }
}

/// What an agent says first. The zero byte keeps it apart from any text.
const GREETING: &[u8] = b"\0ringrun-agent ";

#[derive(Clone, Debug, PartialEq)]
pub struct Greeting {
    pub version: String,
    /// A TCP port that was free on the agent's host.
    pub port: u16,
}

impl Greeting {
    pub fn line(&self) -> Vec<u8> {
        [GREETING, format!("{} {}\n", self.version, self.port).as_bytes()].concat()
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
            remote: true,
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
        let mut inbox = Inbox::default();
        inbox.push(b"GET / HTTP/1.0\r\n");
        assert!(inbox.next().is_err());
    }

    #[test]
    fn frames_come_out_whole_however_they_arrive() {
        let text = [ToAgent::Signal(2).frame(), ToAgent::Ping.frame()].concat();
        let (mut inbox, mut found) = (Inbox::default(), Vec::new());
        for byte in text {
            inbox.push(&[byte]);
            while let Some(body) = inbox.next().unwrap() {
                found.push(ToAgent::parse(body).unwrap());
            }
        }
        assert_eq!(found, [ToAgent::Signal(2), ToAgent::Ping]);
    }

    #[test]
    fn a_greeting_is_found_behind_a_shells_chatter() {
        let greeting = Greeting { version: "1.2.3".into(), port: 4242 };
        let text = [b"Welcome!\n".to_vec(), greeting.line(), ToAgent::Ping.frame()].concat();
        let mut inbox = Inbox::default();
        inbox.push(&text[..20]);
        assert_eq!(inbox.greeting(), None);
        inbox.push(&text[20..]);
        assert_eq!(inbox.greeting(), Some(greeting));
        assert_eq!(inbox.next(), Ok(Some(&ToAgent::Ping.frame()[4..])));
    }
}
