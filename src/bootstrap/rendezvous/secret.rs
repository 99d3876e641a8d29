//! Where the secret comes from, and what keeps the ids of different jobs apart.
//!
//! Nobody meets under the text that a user chose: an id's secret is an HMAC of the job's name and
//! place under it. Without a secret they meet on this machine only, under a key that anybody on
//! it could compute; it keeps accidents out, no enemies. There, the kernel says who somebody is.

use crate::bootstrap::process;
use crate::crypto;
use crate::error::{Error, Result};
use crate::fork::ForkSafeMutex;
use std::fmt;
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};

/// Least characters of a secret: 64 bits where they are hexadecimal digits from a generator, and
/// more than a word that people remember.
pub(super) const LEAST: usize = 16;
/// From so many characters on nobody guesses a secret: 128 bits of hexadecimal digits.
const STRONG: usize = 32;
/// Most bytes of a secret's file.
const MOST: u64 = 4096;

/// How to make one, for error texts.
pub(super) const ADVICE: &str = "set RINGCOMM_SECRET to the same text on every rank (at least 16 \
     characters; `openssl rand -hex 32` makes a good one), or RINGCOMM_SECRET_FILE to a file of \
     mode 0600 that holds it, or start the ranks with ringrun";

/// Where the secret of a job comes from.
#[derive(Clone, PartialEq, Eq)]
pub enum SecretSource {
    /// The text of RINGCOMM_SECRET.
    Text(String),
    /// The file that RINGCOMM_SECRET_FILE names.
    File(PathBuf),
    /// Nobody gave one.
    None,
}

impl fmt::Debug for SecretSource {
    /// Where it comes from; never the secret.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            SecretSource::Text(_) => write!(f, "Text(..)"),
            SecretSource::File(path) => write!(f, "File({})", path.display()),
            SecretSource::None => write!(f, "None"),
        }
    }
}

impl SecretSource {
    /// What the environment says. The text's own variable counts first: a launcher sets it.
    pub(super) fn of(lookup: impl Fn(&str) -> Option<String>) -> SecretSource {
        match (lookup("RINGCOMM_SECRET"), lookup("RINGCOMM_SECRET_FILE")) {
            (Some(text), _) => SecretSource::Text(text),
            (None, Some(path)) => SecretSource::File(path.into()),
            (None, None) => SecretSource::None,
        }
    }

    /// How the message says it.
    pub(super) fn said(&self) -> String {
        match self {
            SecretSource::Text(_) => "the secret is that of RINGCOMM_SECRET".into(),
            SecretSource::File(path) => format!("the secret is in {}", path.display()),
            SecretSource::None => "there is no secret, so only this machine is served".into(),
        }
    }

    /// The key of the text; `None` where nobody gave one. Guesses at a short text are made slow.
    pub(super) fn key(&self) -> Result<Option<Vec<u8>>> {
        let Some(text) = self.text()? else { return Ok(None) };
        if text.chars().count() >= STRONG {
            return Ok(Some(text.into_bytes()));
        }
        // Stretching takes a moment, and the next communicator asks for the same.
        static LAST: ForkSafeMutex<Option<(String, [u8; 32])>> = ForkSafeMutex::new(None);
        let mut last = LAST.lock();
        match &*last {
            Some((known, key)) if *known == text => Ok(Some(key.to_vec())),
            _ => {
                let key = crypto::stretched(text.as_bytes());
                *last = Some((text, key));
                Ok(Some(key.to_vec()))
            }
        }
    }

    /// The text, checked; `None` where nobody gave one.
    fn text(&self) -> Result<Option<String>> {
        let (text, from) = match self {
            SecretSource::None => return Ok(None),
            SecretSource::Text(text) => (text.clone(), "RINGCOMM_SECRET".to_string()),
            SecretSource::File(path) => (read(path)?, path.display().to_string()),
        };
        let text = text.trim();
        let characters = text.chars().count();
        if characters < LEAST {
            return Err(Error::argument(format!(
                "the secret of {from} has {characters} characters; give at least {LEAST}: \
                 `openssl rand -hex 32` makes a good one"
            )));
        }
        Ok(Some(text.to_string()))
    }
}

/// A secret's file, if nobody else could have read or written it.
fn read(path: &Path) -> Result<String> {
    let refused = |why: String| {
        Error::argument(format!("RINGCOMM_SECRET_FILE={} is refused: {why}", path.display()))
    };
    // Not blocking, so that a pipe in the file's place stops nobody.
    let options = || std::fs::File::options().read(true).custom_flags(libc::O_NONBLOCK).clone();
    let file = options().open(path).map_err(|error| refused(error.to_string()))?;
    let found = file.metadata().map_err(|error| refused(error.to_string()))?;
    if !found.is_file() {
        return Err(refused("it is no regular file".into()));
    }
    let user = process::user();
    if found.uid() != user {
        return Err(refused(format!("it belongs to user {}, not to user {user}", found.uid())));
    }
    let mode = found.mode() & 0o777;
    if mode & 0o077 != 0 {
        return Err(refused(format!(
            "its mode is {mode:04o}, so others may know it; chmod 0600 it, with a new secret in it"
        )));
    }
    let mut text = String::new();
    file.take(MOST).read_to_string(&mut text).map_err(|error| refused(error.to_string()))?;
    Ok(text)
}

/// What an id is for, as a label: the length before each part keeps two lists apart.
pub(super) fn label(parts: &[&str]) -> Vec<u8> {
    let with_length = |part: &&str| format!("{}:{part}", part.len());
    parts.iter().map(with_length).collect::<String>().into_bytes()
}

/// The key without a secret: what sets this user on this machine apart.
pub(super) fn of_this_machine() -> Result<String> {
    Ok(format!("user {} of the machine started as {}", process::user(), process::boot_id()?))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn a_short_secret_is_refused_and_never_printed() {
        let secret = SecretSource::Text(" 0123456789abcde\n".into());
        let error = secret.text().unwrap_err().to_string();
        assert!(error.contains("15 characters") && !error.contains("0123"), "{error}");
        assert!(!format!("{secret:?} {}", secret.said()).contains("0123"));
        let secret = SecretSource::Text("0123456789abcdef\n".into());
        assert_eq!(secret.text().unwrap().unwrap(), "0123456789abcdef");
    }

    #[test]
    fn a_file_that_others_may_have_read_is_refused() {
        let path = std::env::temp_dir().join(format!("ringcomm-secret-{}", std::process::id()));
        std::fs::write(&path, "a secret of many letters\n").unwrap();
        let with = |mode| {
            std::fs::set_permissions(&path, PermissionsExt::from_mode(mode)).unwrap();
            SecretSource::File(path.clone()).text()
        };
        for mode in [0o644, 0o640, 0o604, 0o620] {
            let error = with(mode).unwrap_err().to_string();
            assert!(error.contains(&format!("mode is {mode:04o}")), "{error}");
            assert!(error.contains("chmod 0600"), "{error}");
        }
        assert_eq!(with(0o600).unwrap().unwrap(), "a secret of many letters");
        // Root alone can give a file away.
        if std::os::unix::fs::chown(&path, Some(process::user() + 1), None).is_ok() {
            let error = with(0o600).unwrap_err().to_string();
            assert!(error.contains("belongs to user"), "{error}");
        }
        std::fs::remove_file(&path).unwrap();
        let error = SecretSource::File(path.clone()).text().unwrap_err().to_string();
        assert!(error.contains("No such file") && error.contains("ringcomm-secret"), "{error}");
        let error = SecretSource::File(std::env::temp_dir()).text().unwrap_err().to_string();
        assert!(error.contains("no regular file"), "{error}");
    }

    #[test]
    fn a_secret_that_could_be_guessed_is_stretched() {
        let key = |text: &str| SecretSource::Text(text.into()).key().unwrap().unwrap();
        let long = "0123456789abcdef0123456789abcdef";
        assert_eq!(key(long), long.as_bytes());
        let stretched = key(&long[..31]);
        assert_eq!(stretched, crypto::stretched(&long.as_bytes()[..31]));
        assert_eq!(key(&long[..31]), stretched);
        assert_ne!(key(&long[..16]), stretched);
    }

    #[test]
    fn lists_of_parts_do_not_run_together() {
        assert_ne!(label(&["job", "place"]), label(&["jobp", "lace"]));
        assert_ne!(label(&["a", ""]), label(&["a"]));
    }
}
