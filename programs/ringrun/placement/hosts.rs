//! Which hosts a job may use and how many ranks each takes, from `-H` or a hostfile.

/// A host as the user named it.
#[derive(Clone, Debug, PartialEq)]
pub struct Host {
    /// What the remote shell gets: `name`, `user@name` or an address without brackets.
    pub name: String,
    pub slots: usize,
}

impl Host {
    /// The name without the user to log in as.
    pub fn address(&self) -> &str {
        self.name.rsplit_once('@').map_or(&self.name, |(_, address)| address)
    }

    /// Whether the name can only mean this machine, which is called `own`.
    pub fn is_here(&self, own: &str) -> bool {
        let short = |name: &str| name.split('.').next().unwrap_or("").to_ascii_lowercase();
        match self.name.as_str() {
            "localhost" | "127.0.0.1" | "::1" => true,
            // To log in as somebody takes a login.
            name if name.contains('@') || own.is_empty() => false,
            name if name.parse::<std::net::IpAddr>().is_ok() => false,
            // One of the two may lack its domain; two different domains are two machines.
            name if name.contains('.') && own.contains('.') => name.eq_ignore_ascii_case(own),
            name => short(name) == short(own),
        }
    }
}

/// `host1:2,host2:2`; no number is one slot.
pub fn parse_list(text: &str) -> Result<Vec<Host>, String> {
    let hosts: Result<Vec<Host>, String> = text.split(',').map(|entry| parse(entry, 1)).collect();
    Ok(merged(hosts?))
}

/// Lines of `host slots=N`; `#` begins a comment, and `host:N` is understood too.
pub fn parse_file(text: &str) -> Result<Vec<Host>, String> {
    let mut hosts = Vec::new();
    for (at, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or("");
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let place = |why: String| format!("line {}: {why}", at + 1);
        let mut host = parse(name, 1).map_err(place)?;
        for word in words {
            host.slots = match word.split_once('=') {
                Some(("slots", number)) => slots(number).map_err(place)?,
                _ => return Err(place(format!("{word:?} is not understood; write slots=N"))),
            };
        }
        hosts.push(host);
    }
    if hosts.is_empty() {
        return Err("it names no host".into());
    }
    Ok(merged(hosts))
}

/// Lines of `host:slots`; no number is so many.
pub fn parse_lines(text: &str, default: usize) -> Result<Vec<Host>, String> {
    let lines = text.lines().filter(|line| !line.trim().is_empty());
    let hosts: Result<Vec<Host>, String> = lines.map(|line| parse(line, default)).collect();
    match hosts? {
        hosts if hosts.is_empty() => Err("it names no host".into()),
        hosts => Ok(merged(hosts)),
    }
}

/// What one entry may give a host: Linux numbers no more processes (`PID_MAX_LIMIT`).
const MOST_SLOTS: usize = 4 << 20;

fn slots(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(number) if (1..=MOST_SLOTS).contains(&number) => Ok(number),
        _ => Err(format!("{text:?} is not a number of slots")),
    }
}

fn parse(entry: &str, default: usize) -> Result<Host, String> {
    let entry = entry.trim();
    let (name, number) = match entry.strip_prefix('[') {
        Some(rest) => {
            let (address, rest) =
                rest.split_once(']').ok_or(format!("{entry:?}: there is no closing bracket"))?;
            match rest.strip_prefix(':') {
                Some(number) => (address, Some(number)),
                None if rest.is_empty() => (address, None),
                None => return Err(format!("{entry:?}: write [ADDRESS]:SLOTS")),
            }
        }
        None => match entry.split_once(':') {
            Some((_, rest)) if rest.contains(':') => {
                return Err(format!("{entry:?}: write an IPv6 address in brackets, [::1]:2"));
            }
            Some((name, number)) => (name, Some(number)),
            None => (entry, None),
        },
    };
    // A name with a dash in front would be an option to the remote shell.
    if name.is_empty() || name.starts_with('-') || name.contains(char::is_whitespace) {
        return Err(format!("{entry:?} is not a host"));
    }
    let slots = number.map_or(Ok(default), slots)?;
    Ok(Host { name: name.to_string(), slots })
}

/// A host that is named twice has the slots of both.
fn merged(hosts: Vec<Host>) -> Vec<Host> {
    let mut all: Vec<Host> = Vec::new();
    for host in hosts {
        match all.iter_mut().find(|known| known.name == host.name) {
            Some(known) => known.slots += host.slots,
            None => all.push(host),
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pairs(hosts: &[Host]) -> Vec<(&str, usize)> {
        hosts.iter().map(|host| (host.name.as_str(), host.slots)).collect()
    }

    #[test]
    fn a_list_gives_names_and_slots() {
        let hosts = parse_list("a:2,me@b:3,c,[fe80::1]:4,a").unwrap();
        assert_eq!(pairs(&hosts), [("a", 3), ("me@b", 3), ("c", 1), ("fe80::1", 4)]);
        assert_eq!(hosts[1].address(), "b");
    }

    #[test]
    fn a_file_gives_the_same() {
        let text = "# the machines\na slots=2\n\nb:3 # the big one\nc\n";
        assert_eq!(pairs(&parse_file(text).unwrap()), [("a", 2), ("b", 3), ("c", 1)]);
    }

    #[test]
    fn lines_have_slots_of_their_own_or_those_of_all() {
        let hosts = parse_lines("a:2\n\n b \nme@c:1\n", 4).unwrap();
        assert_eq!(pairs(&hosts), [("a", 2), ("b", 4), ("me@c", 1)]);
        assert!(parse_lines("\n", 1).is_err() && parse_lines("a b", 1).is_err());
    }

    #[test]
    fn what_is_no_host_is_refused_with_the_reason() {
        for bad in [
            "",
            "a,,b",
            ":2",
            "a:0",
            "a:x",
            "a:4194305",
            "-oProxyCommand=x",
            "fe80::1",
            "[::1",
            "[::1]2",
        ] {
            assert!(parse_list(bad).is_err(), "{bad:?}");
        }
        let error = parse_file("a\nb slot=2").unwrap_err();
        assert!(error.contains("line 2") && error.contains("slots=N"), "{error}");
        assert!(parse_file("# nobody\n").is_err());
    }

    #[test]
    fn only_names_of_this_machine_are_here() {
        let here = |name: &str, own: &str| Host { name: name.into(), slots: 1 }.is_here(own);
        assert!(here("localhost", "box") && here("127.0.0.1", "") && here("Box", "box"));
        assert!(here("box", "box.site.org") && here("box.site.org", "box"));
        assert!(!here("box.a.org", "box.b.org") && !here("me@box", "box"));
        assert!(!here("10.0.0.1", "10") && !here("other", "box") && !here("other", ""));
    }
}
