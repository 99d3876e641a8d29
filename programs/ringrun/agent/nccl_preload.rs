//! `--nccl`: ranks that get ringcomm's library wherever they ask for NCCL's.
//!
//! The loader gives a library that is loaded to whoever asks for its SONAME, whatever path the
//! program would search. So `LD_PRELOAD` names ringcomm's `libnccl.so.2`, and `LD_LIBRARY_PATH` has
//! its folder for programs that take the first variable from their children.

use crate::protocol::frame::Variable;
use std::ffi::OsStr;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// The variable that names the library, and wins over every other place.
const VARIABLE: &str = "RINGCOMM_NCCL_LIBRARY";

/// What the loader ends a name at, in one of the two variables.
const SEPARATORS: &[u8] = b" :;";

/// Where the library is if the variable does not say: beside this program as Cargo leaves it, or
/// where `make install` and the Python package have it.
fn places(program: &Path) -> Vec<PathBuf> {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let prefix = folder.parent().unwrap_or(folder);
    let of_this_kind = format!("lib/{}-linux-gnu/ringcomm", std::env::consts::ARCH);
    let installed = ["lib/ringcomm", "lib64/ringcomm", &of_this_kind].map(|own| prefix.join(own));
    let all = std::iter::once(folder.join("nccl")).chain(installed);
    all.map(|folder| folder.join("libnccl.so.2")).collect()
}

/// The library for a rank with this environment, on the host that has this program.
fn find(all: &[Variable], program: &Path) -> Result<PathBuf, String> {
    let value = all.iter().find(|(name, _)| name == VARIABLE.as_bytes()).map(|(_, value)| value);
    if let Some(value) = value.filter(|value| !value.is_empty()) {
        let named = Path::new(OsStr::from_bytes(value));
        let path = std::path::absolute(named).map_err(|error| format!("{VARIABLE}: {error}"))?;
        return match path.is_file() {
            true => Ok(path),
            false => Err(format!("{VARIABLE} names {}, which is no file here", path.display())),
        };
    }
    let places = places(program);
    places.iter().find(|place| place.is_file()).cloned().ok_or_else(|| {
        let tried: Vec<String> = places.iter().map(|place| place.display().to_string()).collect();
        format!(
            "--nccl needs ringcomm's libnccl.so.2, which is not at {}: install it here, or say \
             where it is with {VARIABLE}",
            tried.join(" or ")
        )
    })
}

/// Let a list in the environment begin with an entry, once.
pub fn put_in_front(all: &mut Vec<Variable>, name: &str, entry: &[u8]) {
    let Some((_, list)) = all.iter_mut().find(|(known, _)| known == name.as_bytes()) else {
        all.push((name.into(), entry.into()));
        return;
    };
    let first = list.split(|byte| SEPARATORS.contains(byte)).next();
    if list.is_empty() {
        *list = entry.to_vec();
    } else if first != Some(entry) {
        *list = [entry, b":", list].concat();
    }
}

/// Make a rank's environment one in which ringcomm's library has NCCL's place.
pub fn apply(all: &mut Vec<Variable>, program: &Path) -> Result<(), String> {
    let library = find(all, program)?;
    let path = library.as_os_str().as_bytes();
    if path.iter().any(|byte| SEPARATORS.contains(byte)) {
        return Err(format!(
            "LD_PRELOAD cannot name {}: put it where the path has no space, colon or semicolon, \
             and say where with {VARIABLE}",
            library.display()
        ));
    }
    let folder = library.parent().unwrap_or(Path::new("/")).as_os_str().as_bytes();
    put_in_front(all, "LD_PRELOAD", path);
    put_in_front(all, "LD_LIBRARY_PATH", folder);
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(pairs: &[(&str, &str)]) -> Vec<Variable> {
        pairs.iter().map(|(name, value)| (name.as_bytes().to_vec(), (*value).into())).collect()
    }

    #[test]
    fn an_entry_is_in_front_and_there_once() {
        for (before, after) in [
            ("", "/a/b"),
            ("/c", "/a/b:/c"),
            ("/c /d", "/a/b:/c /d"),
            ("/a/b", "/a/b"),
            ("/a/b:/c", "/a/b:/c"),
            ("/a/b /c", "/a/b /c"),
            ("/c:/a/b", "/a/b:/c:/a/b"),
            ("/a/bc", "/a/b:/a/bc"),
        ] {
            let mut all = of(&[("A", "1"), ("LD_PRELOAD", before)]);
            put_in_front(&mut all, "LD_PRELOAD", b"/a/b");
            assert_eq!(all, of(&[("A", "1"), ("LD_PRELOAD", after)]), "{before}");
        }
        let mut none = Vec::new();
        put_in_front(&mut none, "LD_PRELOAD", b"/a/b");
        assert_eq!(none, of(&[("LD_PRELOAD", "/a/b")]));
    }

    #[test]
    fn the_places_are_those_of_cargo_and_of_an_installation() {
        let names: Vec<String> = places(Path::new("/usr/bin/ringrun"))
            .iter()
            .map(|place| place.display().to_string())
            .collect();
        assert_eq!(names[0], "/usr/bin/nccl/libnccl.so.2");
        assert_eq!(names[1], "/usr/lib/ringcomm/libnccl.so.2");
        assert!(names[3].starts_with("/usr/lib/") && names[3].contains("-linux-gnu/ringcomm/"));
    }
}
