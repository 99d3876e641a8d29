//! How another host is asked to run an agent, and the names by which hosts know each other.

use crate::cli::options::{AGENT, Options};
use std::net::{IpAddr, UdpSocket};

/// What ssh is told: never to ask for a password, because its input is the agent's; and to notice
/// within a minute that the other end is gone.
const SSH: &str = "ssh -x -o BatchMode=yes -o ServerAliveInterval=15 -o ServerAliveCountMax=4";

/// The argument that makes this program an agent, for ranks that listen on these ports.
pub fn agent(ports: Option<&str>) -> String {
    ports.map_or(AGENT.into(), |ports| format!("{AGENT}={ports}"))
}

/// The command that runs an agent on a host; `own` is this program's path, which is the default
/// there too, because a remote shell's search path is often short.
pub fn command_line(options: &Options, host: &str, own: &str, agent: &str) -> Vec<String> {
    let environment = std::env::var("RINGCOMM_SSH").ok().filter(|text| !text.trim().is_empty());
    let shell = options.ssh_command.clone().or(environment);
    let mut words: Vec<String> =
        shell.as_deref().unwrap_or(SSH).split_whitespace().map(str::to_string).collect();
    if let Some(port) = options.ssh_port {
        words.extend(["-p".to_string(), port.to_string()]);
    }
    if let Some(identity) = &options.ssh_identity {
        words.extend(["-i".to_string(), identity.clone()]);
    }
    let program = options.remote_path.as_deref().unwrap_or(own);
    words.extend([host.to_string(), quoted(program), agent.to_string()]);
    words
}

/// A word as the remote shell reads it back.
fn quoted(word: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "_./+,:@%=-".contains(c);
    // A tilde in front means the home directory there.
    let rest = word.strip_prefix('~').unwrap_or(word);
    match !rest.is_empty() && rest.chars().all(plain) {
        true => word.to_string(),
        false => format!("'{}'", word.replace('\'', "'\\''")),
    }
}

/// This machine's name.
pub fn own_name() -> String {
    let name = std::fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    name.trim().to_string()
}

/// The address of this machine that a host reaches: the one from which packets to it would leave.
/// Nothing is sent.
pub fn address_towards(host: &str) -> Option<IpAddr> {
    let socket = match host.parse::<IpAddr>() {
        Ok(IpAddr::V6(_)) => UdpSocket::bind("[::]:0"),
        _ => UdpSocket::bind("0.0.0.0:0"),
    };
    let socket = socket.ok()?;
    // Any port will do for a packet that is never sent.
    socket.connect((host, 9)).ok()?;
    let address = socket.local_addr().ok()?.ip();
    (!address.is_loopback() && !address.is_unspecified()).then_some(address)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ssh_gets_what_it_needs_and_no_more() {
        let options = Options {
            ssh_port: Some(2222),
            ssh_identity: Some("key".into()),
            ..Options::default()
        };
        let line = command_line(&options, "me@b", "/usr/bin/ringrun", &agent(None)).join(" ");
        assert!(line.starts_with("ssh -x -o BatchMode=yes"), "{line}");
        assert!(line.ends_with("-p 2222 -i key me@b /usr/bin/ringrun --agent"), "{line}");
        let options = Options {
            ssh_command: Some("rsh -q".into()),
            remote_path: Some("~/my tools/ringrun".into()),
            ..Options::default()
        };
        let words = command_line(&options, "b", "/usr/bin/ringrun", &agent(Some("7-9")));
        assert_eq!(words, ["rsh", "-q", "b", "'~/my tools/ringrun'", "--agent=7-9"]);
    }

    #[test]
    fn words_survive_a_shell() {
        assert_eq!(quoted("~/bin/ringrun"), "~/bin/ringrun");
        assert_eq!(quoted("it's"), "'it'\\''s'");
        assert_eq!(quoted("a;b"), "'a;b'");
        assert_eq!(quoted(""), "''");
    }

    #[test]
    fn the_way_to_oneself_is_no_address_for_others() {
        assert_eq!(address_towards("127.0.0.1"), None);
    }
}
