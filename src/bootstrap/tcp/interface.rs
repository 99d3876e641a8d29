//! Which of this machine's addresses other machines are told.
//!
//! The kernel lists interfaces; everything else here is a pure choice among them. Without a wish
//! of the user's, loopback and the bridges of containers and virtual machines come last and are
//! taken only where there is nothing else: their addresses mean another machine elsewhere.
#![allow(unsafe_code)]

use crate::bootstrap::addresses::is_link_local;
use crate::config::AddressFamily;
use crate::error::{Error, Result};
use std::ffi::CStr;
use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr, SocketAddrV6};

/// One address of one interface; the port is 0.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Interface {
    pub name: String,
    pub address: SocketAddr,
    pub loopback: bool,
}

/// Every address of an interface that is up, in the kernel's order.
pub fn interfaces() -> Result<Vec<Interface>> {
    let mut list = std::ptr::null_mut();
    // SAFETY: the kernel's list is written to a live pointer; it is given back below.
    if unsafe { libc::getifaddrs(&raw mut list) } != 0 {
        return Err(Error::system("listing the network interfaces"));
    }
    let mut found = Vec::new();
    let mut next = list;
    while !next.is_null() {
        // SAFETY: a node of the list, which is live until it is given back.
        let entry = unsafe { &*next };
        next = entry.ifa_next;
        if entry.ifa_flags & libc::IFF_UP as u32 == 0 || entry.ifa_addr.is_null() {
            continue;
        }
        // SAFETY: an interface's address, and long enough for the family that it says it is.
        let Some(address) = (unsafe { socket_address(entry.ifa_addr) }) else { continue };
        // SAFETY: a name that ends in a zero, live as long as the list.
        let name = unsafe { CStr::from_ptr(entry.ifa_name) }.to_string_lossy().into_owned();
        let loopback = entry.ifa_flags & libc::IFF_LOOPBACK as u32 != 0;
        found.push(Interface { name, address, loopback });
    }
    // SAFETY: the list came from getifaddrs and nothing of it is kept.
    unsafe { libc::freeifaddrs(list) };
    Ok(found)
}

/// The address behind a kernel's pointer; `None` for families that are not IP.
///
/// # Safety
/// `address` points at an address as long as its family's structure.
pub(super) unsafe fn socket_address(address: *const libc::sockaddr) -> Option<SocketAddr> {
    // SAFETY: the caller's promise; every address begins with its family.
    match i32::from(unsafe { (*address).sa_family }) {
        libc::AF_INET => {
            // SAFETY: the family says so.
            let v4 = unsafe { address.cast::<libc::sockaddr_in>().read_unaligned() };
            let ip = Ipv4Addr::from(u32::from_be(v4.sin_addr.s_addr));
            Some(SocketAddr::new(IpAddr::V4(ip), u16::from_be(v4.sin_port)))
        }
        libc::AF_INET6 => {
            // SAFETY: the family says so.
            let v6 = unsafe { address.cast::<libc::sockaddr_in6>().read_unaligned() };
            let ip = Ipv6Addr::from(v6.sin6_addr.s6_addr);
            let port = u16::from_be(v6.sin6_port);
            // A socket for both families shows IPv4 peers in IPv6 form.
            Some(match ip.to_ipv4_mapped() {
                Some(ip) => SocketAddr::new(IpAddr::V4(ip), port),
                None => SocketAddrV6::new(ip, port, 0, v6.sin6_scope_id).into(),
            })
        }
        _ => None,
    }
}

/// A wish in NCCL's syntax: `eth,ib` begins with one of these, `=eth0,eth1` is one of these, a `^`
/// in front turns it round.
struct InterfaceFilter<'a> {
    excluding: bool,
    exact: bool,
    names: Vec<&'a str>,
}

impl<'a> InterfaceFilter<'a> {
    fn parse(text: &'a str) -> InterfaceFilter<'a> {
        let rest = text.trim();
        let (excluding, rest) = rest.strip_prefix('^').map_or((false, rest), |rest| (true, rest));
        let (exact, rest) = rest.strip_prefix('=').map_or((false, rest), |rest| (true, rest));
        // NCCL permits a port after the name, which only InfiniBand uses.
        let names = rest.split(',').map(|name| name.split(':').next().unwrap_or("").trim());
        InterfaceFilter { excluding, exact, names: names.filter(|name| !name.is_empty()).collect() }
    }

    fn allows(&self, interface: &str) -> bool {
        let named = self
            .names
            .iter()
            .any(|name| if self.exact { interface == *name } else { interface.starts_with(name) });
        named != self.excluding
    }
}

/// Bridges of containers and virtual machines: every host has one, with the same address.
const PRIVATE: [&str; 8] = ["docker", "podman", "virbr", "lxcbr", "lxdbr", "veth", "cni", "br-"];

/// Smaller is better: what reaches furthest comes first, of equals the kernel's order stays.
fn distance(interface: &Interface) -> (bool, bool, bool, bool) {
    let private = PRIVATE.iter().any(|prefix| interface.name.starts_with(prefix));
    let v6 = interface.address.is_ipv6();
    (interface.loopback, private, is_link_local(&interface.address), v6)
}

/// The addresses to be reached at, best first.
pub fn choose(
    all: &[Interface],
    wish: Option<&str>,
    family: Option<AddressFamily>,
) -> Result<Vec<SocketAddr>> {
    let parsed = wish.map(InterfaceFilter::parse);
    let of_family = |interface: &&Interface| match family {
        None => true,
        Some(AddressFamily::V4) => interface.address.is_ipv4(),
        Some(AddressFamily::V6) => interface.address.is_ipv6(),
    };
    let wished =
        |interface: &&Interface| parsed.as_ref().is_none_or(|wish| wish.allows(&interface.name));
    let mut chosen: Vec<&Interface> = all.iter().filter(of_family).filter(wished).collect();
    chosen.sort_by_key(|interface| distance(interface));
    // Named by the user, an interface is good whatever it is; else the poor ones only by need.
    let naming = parsed.as_ref().is_some_and(|wish| !wish.excluding);
    if let Some(best) = chosen.first().filter(|_| !naming) {
        let (loopback, private, ..) = distance(best);
        chosen.retain(|interface| {
            let (other_loopback, other_private, ..) = distance(interface);
            (other_loopback, other_private) == (loopback, private)
        });
    }
    if chosen.is_empty() {
        return Err(Error::usage(nothing_left(all, wish, family)));
    }
    Ok(chosen.into_iter().map(|interface| interface.address).collect())
}

fn nothing_left(all: &[Interface], wish: Option<&str>, family: Option<AddressFamily>) -> String {
    let mut names: Vec<&str> = all.iter().map(|interface| interface.name.as_str()).collect();
    names.dedup();
    let of_family = match family {
        None => "",
        Some(AddressFamily::V4) => " with an IPv4 address",
        Some(AddressFamily::V6) => " with an IPv6 address",
    };
    match wish {
        Some(wish) => format!(
            "RINGCOMM_SOCKET_IFNAME={wish:?} leaves no interface{of_family} that is up; there are \
             {names:?}"
        ),
        None => format!("no interface{of_family} is up; there are {names:?}"),
    }
}

/// A link-local address means something only together with an interface, and the scope that came
/// with it is the other machine's: it is tried as it is, then on every interface of this one.
pub fn reachable(to: &[SocketAddr]) -> Vec<SocketAddr> {
    let link_local = |address: &SocketAddr| match address.ip() {
        IpAddr::V6(ip) => ip.is_unicast_link_local(),
        IpAddr::V4(_) => false,
    };
    let mut all = to.to_vec();
    if to.iter().any(link_local) {
        let own = interfaces().unwrap_or_default();
        for (own, to) in own.iter().flat_map(|own| to.iter().map(move |to| (own, to))) {
            let (SocketAddr::V6(own), SocketAddr::V6(mut there)) = (own.address, *to) else {
                continue;
            };
            if own.scope_id() != 0 && link_local(to) {
                there.set_scope_id(own.scope_id());
                if !all.contains(&there.into()) {
                    all.push(there.into());
                }
            }
        }
    }
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    fn interface(name: &str, address: &str) -> Interface {
        let address: SocketAddr = address.parse().unwrap();
        Interface { name: name.into(), address, loopback: name == "lo" }
    }

    fn machine() -> Vec<Interface> {
        vec![
            interface("lo", "127.0.0.1:0"),
            interface("lo", "[::1]:0"),
            interface("docker0", "172.17.0.1:0"),
            interface("podman0", "10.88.0.1:0"),
            interface("lxdbr0", "10.11.0.1:0"),
            interface("lxcbr0", "10.0.3.1:0"),
            interface("eth0", "[fe80::1%2]:0"),
            interface("eth0", "192.0.2.2:0"),
            interface("eth1", "198.51.100.2:0"),
            interface("ib0", "10.0.0.2:0"),
            interface("eth0", "[2001:db8::2]:0"),
        ]
    }

    fn chosen(wish: Option<&str>, family: Option<AddressFamily>) -> Vec<String> {
        let found = choose(&machine(), wish, family).unwrap();
        found.iter().map(|address| address.ip().to_string()).collect()
    }

    #[test]
    fn without_a_wish_what_reaches_furthest_comes_first_and_never_loopback() {
        let all = chosen(None, None);
        assert_eq!(all, ["192.0.2.2", "198.51.100.2", "10.0.0.2", "2001:db8::2", "fe80::1"]);
    }

    #[test]
    fn loopback_and_bridges_serve_where_there_is_nothing_else() {
        let poor = &machine()[..3];
        let ips = |found: Vec<SocketAddr>| {
            found.iter().map(|address| address.ip().to_string()).collect::<Vec<_>>()
        };
        assert_eq!(ips(choose(poor, None, None).unwrap()), ["172.17.0.1"]);
        assert_eq!(ips(choose(&poor[..2], None, None).unwrap()), ["127.0.0.1", "::1"]);
    }

    #[test]
    fn wishes_are_read_as_nccl_reads_them() {
        assert_eq!(chosen(Some("ib"), None), ["10.0.0.2"]);
        assert_eq!(chosen(Some("ib,eth1"), None), ["198.51.100.2", "10.0.0.2"]);
        assert_eq!(chosen(Some("=eth0"), Some(AddressFamily::V4)), ["192.0.2.2"]);
        assert_eq!(chosen(Some("^eth,docker"), None), ["10.0.0.2"]);
        assert_eq!(chosen(Some("^=eth0"), None), ["198.51.100.2", "10.0.0.2"]);
        assert_eq!(chosen(Some("eth0"), Some(AddressFamily::V6)), ["2001:db8::2", "fe80::1"]);
        assert_eq!(chosen(Some("lo"), None), ["127.0.0.1", "::1"]);
        assert_eq!(chosen(Some("docker0"), None), ["172.17.0.1"]);
    }

    #[test]
    fn a_wish_that_nothing_meets_lists_what_there_is() {
        let error = |wish, family| choose(&machine(), wish, family).unwrap_err().to_string();
        let text = error(Some("=eth"), None);
        assert!(text.contains("RINGCOMM_SOCKET_IFNAME=\"=eth\"") && text.contains("docker0"));
        let text = error(Some("ib"), Some(AddressFamily::V6));
        assert!(text.contains("IPv6"), "{text}");
        assert!(choose(&[], None, None).is_err());
    }

    #[test]
    fn the_kernel_lists_loopback() {
        let all = interfaces().unwrap();
        assert!(all.iter().any(|one| one.loopback && one.address.ip().is_loopback()), "{all:?}");
    }
}
