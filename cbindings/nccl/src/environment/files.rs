//! `NCCL_CONF_FILE` or `~/.nccl.conf`, then `/etc/nccl.conf`: lines of `NAME=value`.

use ringcomm::os::environment;
use std::path::PathBuf;

/// All that the files say, what wins first.
pub fn read() -> Vec<(String, String)> {
    let named = environment::variable_os("NCCL_CONF_FILE").filter(|path| !path.is_empty());
    let own = named.map(PathBuf::from).or_else(|| {
        environment::variable_os("HOME").map(|home| PathBuf::from(home).join(".nccl.conf"))
    });
    let system = PathBuf::from("/etc/nccl.conf");
    let files = own.into_iter().chain([system]);
    let texts = files.filter_map(|path: PathBuf| std::fs::read(path).ok());
    texts.flat_map(|text: Vec<u8>| parse(&String::from_utf8_lossy(&text))).collect()
}

/// As NCCL reads them: a line begins with the name, the value is all behind the first `=`.
fn parse(text: &str) -> Vec<(String, String)> {
    let pair = |line: &str| {
        let (name, value) = line.split_once('=').filter(|_| !line.starts_with('#'))?;
        Some((name.trim().to_string(), value.trim_end_matches('\r').to_string()))
    };
    text.lines().filter_map(pair).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_line_is_a_name_and_a_value() {
        let text =
            "# NCCL_ALGO=Tree\nNCCL_DEBUG=WARN\r\n\nnothing\nNCCL_SOCKET_IFNAME==eth0,=eth1\n";
        let wanted = [("NCCL_DEBUG", "WARN"), ("NCCL_SOCKET_IFNAME", "=eth0,=eth1")];
        let parsed = parse(text);
        let parsed: Vec<(&str, &str)> = parsed.iter().map(|(a, b)| (&a[..], &b[..])).collect();
        assert_eq!(parsed, wanted);
    }
}
