//! JSON, as much as the reports and `--compare` need.

use std::fmt;

#[derive(Clone, Debug, PartialEq)]
pub enum Value {
    Null,
    Bool(bool),
    Number(f64),
    Text(String),
    List(Vec<Value>),
    Object(Vec<(String, Value)>),
}

impl From<f64> for Value {
    fn from(number: f64) -> Value {
        // JSON has no NaN and no infinity.
        if number.is_finite() { Value::Number(number) } else { Value::Null }
    }
}

impl From<usize> for Value {
    fn from(number: usize) -> Value {
        Value::Number(number as f64)
    }
}

impl From<bool> for Value {
    fn from(value: bool) -> Value {
        Value::Bool(value)
    }
}

impl From<&str> for Value {
    fn from(text: &str) -> Value {
        Value::Text(text.into())
    }
}

/// `object([("name", value), ...])`, in this order.
pub fn object<'a>(fields: impl IntoIterator<Item = (&'a str, Value)>) -> Value {
    Value::Object(fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect())
}

impl Value {
    pub fn field(&self, name: &str) -> Option<&Value> {
        match self {
            Value::Object(fields) => {
                fields.iter().find(|(field, _)| field == name).map(|(_, value)| value)
            }
            _ => None,
        }
    }

    pub fn number(&self, name: &str) -> Option<f64> {
        match self.field(name) {
            Some(Value::Number(number)) => Some(*number),
            _ => None,
        }
    }

    pub fn text(&self, name: &str) -> Option<&str> {
        match self.field(name) {
            Some(Value::Text(text)) => Some(text),
            _ => None,
        }
    }

    pub fn list(&self, name: &str) -> Option<&[Value]> {
        match self.field(name) {
            Some(Value::List(values)) => Some(values),
            _ => None,
        }
    }
}

fn write_text(f: &mut fmt::Formatter<'_>, text: &str) -> fmt::Result {
    f.write_str("\"")?;
    for letter in text.chars() {
        match letter {
            '"' => f.write_str("\\\"")?,
            '\\' => f.write_str("\\\\")?,
            '\n' => f.write_str("\\n")?,
            control if (control as u32) < 32 => write!(f, "\\u{:04x}", control as u32)?,
            plain => write!(f, "{plain}")?,
        }
    }
    f.write_str("\"")
}

impl fmt::Display for Value {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Value::Null => f.write_str("null"),
            Value::Bool(value) => write!(f, "{value}"),
            Value::Number(number) => write!(f, "{number}"),
            Value::Text(text) => write_text(f, text),
            Value::List(values) => {
                f.write_str("[")?;
                for (index, value) in values.iter().enumerate() {
                    write!(f, "{}{value}", if index > 0 { ", " } else { "" })?;
                }
                f.write_str("]")
            }
            Value::Object(fields) => {
                f.write_str("{")?;
                for (index, (name, value)) in fields.iter().enumerate() {
                    f.write_str(if index > 0 { ", " } else { "" })?;
                    write_text(f, name)?;
                    write!(f, ": {value}")?;
                }
                f.write_str("}")
            }
        }
    }
}

/// Deeper than any report, shallow against any stack.
const DEPTH: usize = 64;

pub fn parse(text: &str) -> Result<Value, String> {
    let mut reader = Reader { bytes: text.as_bytes(), at: 0 };
    let value = reader.value(DEPTH)?;
    reader.blanks();
    if reader.at < reader.bytes.len() {
        return Err(reader.error("text after the end"));
    }
    Ok(value)
}

struct Reader<'a> {
    bytes: &'a [u8],
    at: usize,
}

impl Reader<'_> {
    fn error(&self, what: &str) -> String {
        let read = &self.bytes[..self.at.min(self.bytes.len())];
        let line = 1 + read.iter().filter(|byte| **byte == b'\n').count();
        format!("not JSON: {what} in line {line}")
    }

    fn blanks(&mut self) {
        while self.bytes.get(self.at).is_some_and(|byte| byte.is_ascii_whitespace()) {
            self.at += 1;
        }
    }

    /// Whether `token` comes next; steps over it if so.
    fn takes(&mut self, token: &str) -> bool {
        self.blanks();
        let found = self.bytes[self.at..].starts_with(token.as_bytes());
        self.at += if found { token.len() } else { 0 };
        found
    }

    fn value(&mut self, depth: usize) -> Result<Value, String> {
        if depth == 0 {
            return Err(self.error("too deep a nesting"));
        }
        if self.takes("null") {
            Ok(Value::Null)
        } else if self.takes("true") {
            Ok(Value::Bool(true))
        } else if self.takes("false") {
            Ok(Value::Bool(false))
        } else if self.takes("\"") {
            Ok(Value::Text(self.rest_of_text()?))
        } else if self.takes("[") {
            let mut values = Vec::new();
            while !self.takes("]") {
                if !values.is_empty() && !self.takes(",") {
                    return Err(self.error("no comma between values"));
                }
                values.push(self.value(depth - 1)?);
            }
            Ok(Value::List(values))
        } else if self.takes("{") {
            self.rest_of_object(depth)
        } else {
            self.parse_number()
        }
    }

    fn rest_of_object(&mut self, depth: usize) -> Result<Value, String> {
        let mut fields = Vec::new();
        while !self.takes("}") {
            if !fields.is_empty() && !self.takes(",") {
                return Err(self.error("no comma between fields"));
            }
            if !self.takes("\"") {
                return Err(self.error("no name of a field"));
            }
            let name = self.rest_of_text()?;
            if !self.takes(":") {
                return Err(self.error("no colon after a name"));
            }
            fields.push((name, self.value(depth - 1)?));
        }
        Ok(Value::Object(fields))
    }

    fn rest_of_text(&mut self) -> Result<String, String> {
        let mut text = Vec::new();
        loop {
            let byte = *self.bytes.get(self.at).ok_or_else(|| self.error("an open text"))?;
            self.at += 1;
            match byte {
                b'"' => return String::from_utf8(text).map_err(|_| self.error("bad UTF-8")),
                b'\\' => {
                    let letter = self.escaped()?;
                    text.extend_from_slice(letter.encode_utf8(&mut [0; 4]).as_bytes());
                }
                plain => text.push(plain),
            }
        }
    }

    fn escaped(&mut self) -> Result<char, String> {
        let byte = *self.bytes.get(self.at).ok_or_else(|| self.error("an open text"))?;
        self.at += 1;
        Ok(match byte {
            b'n' => '\n',
            b't' => '\t',
            b'r' => '\r',
            b'b' => '\u{8}',
            b'f' => '\u{c}',
            b'u' => {
                let digits = self.bytes.get(self.at..self.at + 4).and_then(|digits| {
                    u32::from_str_radix(std::str::from_utf8(digits).ok()?, 16).ok()
                });
                self.at += 4;
                // Surrogate pairs never occur in what ring-perf writes.
                digits.and_then(char::from_u32).ok_or_else(|| self.error("a bad escape"))?
            }
            plain => plain as char,
        })
    }

    fn parse_number(&mut self) -> Result<Value, String> {
        let number = |byte: &&u8| matches!(byte, b'0'..=b'9' | b'-' | b'+' | b'.' | b'e' | b'E');
        let length = self.bytes[self.at..].iter().take_while(number).count();
        let text = std::str::from_utf8(&self.bytes[self.at..self.at + length]).unwrap_or("");
        let value: f64 = text.parse().map_err(|_| self.error("no value"))?;
        if value.is_infinite() {
            return Err(self.error("too large a number"));
        }
        self.at += length;
        Ok(Value::Number(value))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_again() {
        let value = object([
            ("a \"b\"\n\u{1}", Value::from(1.5)),
            ("list", Value::List(vec![Value::Null, true.into(), "x\\y".into()])),
            ("nan", f64::NAN.into()),
            ("large", (1usize << 40).into()),
        ]);
        let mut expected = value.clone();
        if let Value::Object(fields) = &mut expected {
            fields[2].1 = Value::Null;
        }
        assert_eq!(parse(&value.to_string()).unwrap(), expected);
    }

    #[test]
    fn broken_text_is_refused_with_its_line() {
        for text in ["", "{", "[1 2]", "{\"a\" 1}", "\"open", "[1] 2", "nul", "\"\\u12", "1e999"] {
            assert!(parse(text).is_err(), "{text}");
        }
        assert!(parse("[1,\n2\n3]").unwrap_err().contains("line 3"));
        assert!(parse(&"[".repeat(1000)).is_err());
    }
}
