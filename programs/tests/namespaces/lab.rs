//! Four hosts on a wire of their own: network namespaces with a pair of virtual Ethernets each, to
//! a bridge in a fifth.
//!
//! The namespaces have no names: each lives by a descriptor of this process, and its interfaces,
//! filters and queues with it. So however the process ends, nothing is left of them; and their
//! packets can go nowhere but to each other.

use std::fs::File;
use std::io::{ErrorKind, Write};
use std::os::fd::{AsFd, AsRawFd, BorrowedFd};
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};

pub const HOSTS: usize = 4;

/// Said of one that is not installed, and of nothing else: a filter that is wrong is answered with
/// "No such file or directory", too.
pub const NO_PROGRAM: &str = "this machine has no program";

/// What goes wrong on the wire.
#[derive(Clone, Copy, Debug, PartialEq)]
pub enum Trouble {
    None,
    /// So many of a hundred packets are lost.
    Loss(usize),
    /// A host sends so many megabits a second.
    Rate(usize),
    /// Both.
    Slow {
        loss: usize,
        rate: usize,
    },
    /// Now and then, for some milliseconds, packets are answered by a reset of their connection.
    Resets,
    /// At some moment one host hears nothing any more, and is not heard.
    Partition,
}

pub struct Lab {
    hub: File,
    hosts: Vec<File>,
}

impl Lab {
    /// The hosts, or why this machine has none.
    pub fn new() -> Result<Lab, String> {
        Lab::with(|host| format!("addr add {}/24 dev eth0\n", address(host)))
    }

    /// The same with nothing but IPv6, of which an address means something on its wire only: hosts
    /// that nobody has given an address.
    pub fn link_local() -> Result<Lab, String> {
        // The kernel would look for a second for somebody who has the address already.
        Lab::with(|host| {
            format!("link set eth0 addrgenmode none\naddr add {} dev eth0 nodad\n", local(host))
        })
    }

    /// The hosts, with addresses as these lines for `ip` give them.
    fn with(addressed: impl Fn(usize) -> String) -> Result<Lab, String> {
        let lab = Lab {
            hub: namespace()?,
            hosts: (0..HOSTS).map(|_| namespace()).collect::<Result<_, _>>()?,
        };
        let mut wires = "link add hub type bridge\nlink set hub up\n".to_string();
        for (number, host) in lab.hosts.iter().enumerate() {
            let path = format!("/proc/{}/fd/{}", std::process::id(), host.as_raw_fd());
            // Its number is another on every host, as it may be on machines.
            let index = 10 + number;
            let peer = format!("name eth0 index {index} address {} netns {path}", mac(number));
            wires += &format!("link add host{number} type veth peer {peer}\n");
            wires += &format!("link set host{number} master hub up\n");
        }
        feed(&lab.hub, &["ip", "-batch", "-"], &wires)?;
        for (number, host) in lab.hosts.iter().enumerate() {
            let lines = format!("link set lo up\n{}link set eth0 up\n", addressed(number));
            feed(host, &["ip", "-batch", "-"], &lines)?;
        }
        // A kernel may lack the parts.
        lab.set(Trouble::Slow { loss: 1, rate: 1000 })?;
        lab.reset(0, 1)?;
        lab.set(Trouble::None)?;
        Ok(lab)
    }

    /// Give every host the same address beside its own, on a bridge that leads nowhere.
    pub fn give_all(&self, address: &str) -> Result<(), String> {
        let bridge = "link add shared0 type bridge\n";
        let lines = format!("{bridge}addr add {address} dev shared0\nlink set shared0 up\n");
        self.hosts.iter().try_for_each(|host| feed(host, &["ip", "-batch", "-"], &lines))
    }

    pub fn host(&self, number: usize) -> BorrowedFd<'_> {
        self.hosts[number].as_fd()
    }

    /// Run this on one of the hosts.
    pub fn on_host<T: Send>(&self, number: usize, work: impl FnOnce() -> T + Send) -> T {
        let host = self.host(number);
        let enter = move || {
            // SAFETY: it moves this thread, which has no other work, and takes no pointer.
            assert_eq!(unsafe { libc::setns(host.as_raw_fd(), libc::CLONE_NEWNET) }, 0, "setns");
            work()
        };
        std::thread::scope(|scope| scope.spawn(enter).join()).expect("no panic on a host")
    }

    /// Have the wire do this from now on; resets and partitions come by calls of their own.
    pub fn set(&self, trouble: Trouble) -> Result<(), String> {
        let (loss, rate) = match trouble {
            Trouble::Loss(loss) => (loss, 0),
            Trouble::Rate(rate) => (0, rate),
            Trouble::Slow { loss, rate } => (loss, rate),
            Trouble::None | Trouble::Resets | Trouble::Partition => (0, 0),
        };
        for host in &self.hosts {
            let rule = format!("numgen random mod 100 < {loss} drop");
            filter(host, if loss > 0 { &rule } else { "accept" })?;
            let queue = match rate {
                // The queue of a virtual Ethernet that was asked for none.
                0 => "qdisc replace dev eth0 root noqueue\n".into(),
                // A burst is what a timer of 1 kHz must let through at 500 Mbit/s.
                _ => format!(
                    "qdisc replace dev eth0 root tbf rate {rate}mbit burst 64kb latency 50ms\n"
                ),
            };
            feed(host, &["tc", "-batch", "-"], &queue)?;
        }
        Ok(())
    }

    /// Have so many of a hundred packets to this host answered by a reset.
    pub fn reset(&self, host: usize, percent: usize) -> Result<(), String> {
        let some = format!("meta l4proto tcp numgen random mod 100 < {percent}");
        filter(&self.hosts[host], &format!("{some} reject with tcp reset"))
    }

    /// Let nothing through to or from this host, and tell nobody.
    pub fn cut(&self, host: usize) -> Result<(), String> {
        for other in (0..HOSTS).filter(|other| *other != host) {
            self.part(other, host)?;
        }
        filter(&self.hosts[host], "drop")
    }

    /// Let nothing from one host through to another, and tell nobody.
    pub fn part(&self, host: usize, other: usize) -> Result<(), String> {
        filter(&self.hosts[host], &format!("ether saddr {} drop", mac(other)))
    }

    /// Let nobody in at these ports of a host; the verdict says what callers are told.
    pub fn shut(&self, host: usize, ports: &str, verdict: &str) -> Result<(), String> {
        filter(&self.hosts[host], &format!("tcp dport {ports} {verdict}"))
    }

    /// A program that runs another on the host with the address that it is given first.
    pub fn shell(&self) -> String {
        let mut text = "#!/bin/sh\nhost=$1\nshift\ncase $host in\n".to_string();
        for (number, host) in self.hosts.iter().enumerate() {
            let path = format!("/proc/{}/fd/{}", std::process::id(), host.as_raw_fd());
            text += &format!("{}) exec nsenter --net={path} \"$@\" ;;\n", address(number));
        }
        text + "esac\nexit 1\n"
    }
}

/// Of the addresses that RFC 2544 sets aside for tests of networks.
pub fn address(host: usize) -> String {
    format!("198.18.0.{}", host + 1)
}

/// One that is good on its wire only.
fn local(host: usize) -> String {
    format!("fe80::{}/64", host + 1)
}

/// An address of the kind that whoever runs a network gives out.
fn mac(host: usize) -> String {
    format!("02:00:00:00:00:{:02x}", host + 1)
}

/// Replace what a host does with packets that come from the wire, in one step.
fn filter(host: &File, rule: &str) -> Result<(), String> {
    let chain = "type filter hook input priority 0; iifname \"lo\" accept;";
    let table = format!("table inet wire {{ chain arriving {{ {chain} {rule}\n}}\n}}\n");
    feed(host, &["nft", "-f", "-"], &format!("table inet wire\ndelete table inet wire\n{table}"))
}

/// A new network namespace, which lives as long as the descriptor.
fn namespace() -> Result<File, String> {
    let make = || {
        // SAFETY: it moves this thread, which has no other work, and takes no pointer.
        if unsafe { libc::unshare(libc::CLONE_NEWNET) } != 0 {
            let error = std::io::Error::last_os_error();
            return Err(format!("no network namespace may be made here: {error}"));
        }
        File::open("/proc/thread-self/ns/net").map_err(|error| error.to_string())
    };
    std::thread::spawn(make).join().expect("no panic")
}

/// Run a program in a namespace with this on its standard input.
fn feed(namespace: &File, words: &[&str], input: &str) -> Result<(), String> {
    let mut command = Command::new(words[0]);
    command.args(&words[1..]).stdin(Stdio::piped()).stdout(Stdio::null()).stderr(Stdio::piped());
    let namespace = namespace.as_raw_fd();
    // SAFETY: the call is async-signal-safe.
    unsafe {
        command.pre_exec(move || match libc::setns(namespace, libc::CLONE_NEWNET) {
            0 => Ok(()),
            _ => Err(std::io::Error::last_os_error()),
        });
    }
    let failed = |why: String| format!("{}: {why}", words.join(" "));
    let mut child = command.spawn().map_err(|error| match error.kind() {
        ErrorKind::NotFound => format!("{NO_PROGRAM} {}", words[0]),
        _ => failed(error.to_string()),
    })?;
    child.stdin.take().expect("piped").write_all(input.as_bytes()).map_err(|e| e.to_string())?;
    let output = child.wait_with_output().map_err(|error| error.to_string())?;
    match output.status.success() {
        true => Ok(()),
        false => Err(failed(format!("{input}{}", String::from_utf8_lossy(&output.stderr)))),
    }
}
