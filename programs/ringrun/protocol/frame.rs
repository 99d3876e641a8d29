//! Frames: how messages lie in a stream of bytes, and the greeting that comes before them.
//!
//! An agent first writes a greeting, a line that every version can read; then both sides send
//! frames: four bytes of length, a byte that says what follows, the fields. Numbers are little
//! endian; texts are bytes with their length, because neither arguments nor variables need be
//! UTF-8.

/// A variable, in the bytes that the kernel hands on.
pub type Variable = (Vec<u8>, Vec<u8>);

/// Longest frame. A job's description holds its variables, which the kernel limits to a few
/// megabytes for every process; anything longer did not come from an agent.
const MOST_FRAME_BYTES: usize = 64 << 20;

/// Writes the fields of one frame.
pub struct Writer(Vec<u8>);

impl Writer {
    pub fn new(kind: u8) -> Writer {
        Writer(vec![0, 0, 0, 0, kind])
    }

    pub fn number(mut self, number: u32) -> Writer {
        self.0.extend_from_slice(&number.to_le_bytes());
        self
    }

    pub fn bytes(self, bytes: &[u8]) -> Writer {
        let mut with_length = self.number(bytes.len() as u32);
        with_length.0.extend_from_slice(bytes);
        with_length
    }

    /// A number that may be missing.
    pub fn perhaps(self, number: Option<u32>) -> Writer {
        match number {
            Some(number) => self.number(1).number(number),
            None => self.number(0),
        }
    }

    pub fn list<T>(self, all: &[T], each: impl Fn(Writer, &T) -> Writer) -> Writer {
        all.iter().fold(self.number(all.len() as u32), each)
    }

    pub fn variables(self, all: &[Variable]) -> Writer {
        self.list(all, |writer, (name, value)| writer.bytes(name).bytes(value))
    }

    pub fn frame(mut self) -> Vec<u8> {
        let length = (self.0.len() - 4) as u32;
        self.0[..4].copy_from_slice(&length.to_le_bytes());
        self.0
    }
}

/// Reads the fields of one frame; whatever does not fit is an error.
pub struct Reader<'a>(&'a [u8]);

pub type Read<T> = Result<T, String>;

impl<'a> Reader<'a> {
    pub fn new(body: &'a [u8]) -> Reader<'a> {
        Reader(body)
    }

    pub fn byte(&mut self) -> Read<u8> {
        let (first, rest) = self.0.split_first().ok_or("a message ends too early")?;
        self.0 = rest;
        Ok(*first)
    }

    pub fn number(&mut self) -> Read<u32> {
        let (first, rest) = self.0.split_first_chunk().ok_or("a message ends too early")?;
        self.0 = rest;
        Ok(u32::from_le_bytes(*first))
    }

    pub fn bytes(&mut self) -> Read<Vec<u8>> {
        let length = self.number()? as usize;
        let (first, rest) = self.0.split_at_checked(length).ok_or("a message ends too early")?;
        self.0 = rest;
        Ok(first.to_vec())
    }

    pub fn perhaps(&mut self) -> Read<Option<u32>> {
        match self.number()? {
            0 => Ok(None),
            _ => self.number().map(Some),
        }
    }

    pub fn list<T>(&mut self, each: impl Fn(&mut Self) -> Read<T>) -> Read<Vec<T>> {
        let length = self.number()?;
        // Not allocated ahead: the length is the sender's word.
        (0..length).map(|_| each(self)).collect()
    }

    pub fn variables(&mut self) -> Read<Vec<Variable>> {
        self.list(|reader| Ok((reader.bytes()?, reader.bytes()?)))
    }

    pub fn end<T>(self, value: T) -> Read<T> {
        if self.0.is_empty() { Ok(value) } else { Err("a message is too long".into()) }
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
        let second_port = words.next().and_then(|word| word.parse().ok()).unwrap_or(0);
        self.used = at + GREETING.len() + end + 1;
        Some(Greeting { version, port, second_port })
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
    /// Another one.
    pub second_port: u16,
}

impl Greeting {
    pub fn line(&self) -> Vec<u8> {
        let line = format!("{} {} {}\n", self.version, self.port, self.second_port);
        [GREETING, line.as_bytes()].concat()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_come_out_whole_however_they_arrive() {
        let text = [Writer::new(7).number(2).frame(), Writer::new(8).frame()].concat();
        let (mut inbox, mut found) = (Inbox::default(), Vec::new());
        for byte in text {
            inbox.push(&[byte]);
            while let Some(body) = inbox.next().unwrap() {
                found.push(body.to_vec());
            }
        }
        assert_eq!(found, [vec![7, 2, 0, 0, 0], vec![8]]);
    }

    #[test]
    fn a_length_that_nobody_sends_is_an_error() {
        let mut inbox = Inbox::default();
        inbox.push(b"GET / HTTP/1.0\r\n");
        assert!(inbox.next().is_err());
    }

    #[test]
    fn a_greeting_is_found_behind_a_shells_chatter() {
        let greeting = Greeting { version: "1.2.3".into(), port: 4242, second_port: 7 };
        let text = [b"Welcome!\n".to_vec(), greeting.line(), Writer::new(4).frame()].concat();
        let mut inbox = Inbox::default();
        inbox.push(&text[..20]);
        assert_eq!(inbox.greeting(), None);
        inbox.push(&text[20..]);
        assert_eq!(inbox.greeting(), Some(greeting));
        assert_eq!(inbox.next(), Ok(Some(&[4][..])));
    }
}
