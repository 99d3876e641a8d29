//! `--compat`: Python ranks that get ringcomm wherever they import Horovod or apex.
//!
//! The Python package has a folder with packages of these names. `PYTHONPATH` begins with it, and
//! with the folder of the package itself, for a Python in which ringcomm is not installed.

use super::nccl_preload::put_in_front;
use crate::protocol::frame::Variable;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

/// Where the package is: around this program as pip leaves it, or in a checkout in which Cargo has
/// built it.
fn places(program: &Path) -> [PathBuf; 2] {
    let folder = program.parent().unwrap_or(Path::new("/"));
    let checkout = folder.ancestors().nth(2).unwrap_or(folder);
    [folder.parent().unwrap_or(folder).into(), checkout.join("python/ringcomm")]
}

/// Make a rank's environment one in which ringcomm has Horovod's and apex's places.
pub fn apply(all: &mut Vec<Variable>, program: &Path) -> Result<(), String> {
    let places = places(program);
    let found = places.iter().find(|place| place.join("compat/horovod/__init__.py").is_file());
    let package = found.ok_or_else(|| {
        let tried = places.each_ref().map(|place| place.join("compat").display().to_string());
        format!(
            "--compat needs the Python package's folder, which is not at {}: start ringrun as \
             `pip install` has put it there, or the program as `python -m ringcomm.compat PROGRAM`",
            tried.join(" or ")
        )
    })?;
    let around = package.parent().unwrap_or(package);
    put_in_front(all, "PYTHONPATH", around.as_os_str().as_bytes());
    put_in_front(all, "PYTHONPATH", package.join("compat").as_os_str().as_bytes());
    Ok(())
}
