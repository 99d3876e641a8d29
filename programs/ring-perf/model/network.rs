//! The network that `--network` describes.

use ringcomm::algorithm::select::Costs;
use ringcomm::plan::simulate::Machine;

/// A network with one port per rank, or per host where ranks share hosts.
#[derive(Clone, Copy, Debug, PartialEq)]
pub struct Network {
    /// From the end of a send to its arrival.
    pub alpha_us: f64,
    /// A rank's own time for a message.
    pub message_us: f64,
    /// What a rank's port carries.
    pub beta_gbs: f64,
    /// What a rank copies or adds in its own memory.
    pub memory_gbs: f64,
    pub slot_bytes: usize,
    pub depth: usize,
}

/// Bytes of the shortest slot of a communicator: a cache line.
const LEAST_SLOT: usize = 64;

impl Network {
    /// Read `key=value,...`; what is not given keeps its default.
    pub fn parse(text: &str) -> Result<Network, String> {
        let mut network = Network {
            // A 100 Gb/s network of 2026 through a kernel-bypass library, and one core's memory.
            alpha_us: 2.0,
            message_us: 0.2,
            beta_gbs: 12.5,
            memory_gbs: 20.0,
            slot_bytes: 512 << 10,
            depth: 8,
        };
        for field in text.split(',').map(str::trim).filter(|field| !field.is_empty()) {
            let (key, value) = field
                .split_once('=')
                .ok_or_else(|| format!("--network: {field:?} is not key=value"))?;
            let real = |unit: &str| -> Result<f64, String> {
                let number = value.strip_suffix(unit).unwrap_or(value);
                let real: f64 = number.trim().parse().unwrap_or(f64::NAN);
                match real.is_finite() && real > 0.0 {
                    true => Ok(real),
                    false => Err(format!("--network: {field:?} needs a positive number of {unit}")),
                }
            };
            match key {
                "alpha" => network.alpha_us = real("us")?,
                "message" => network.message_us = real("us")?,
                "beta" => network.beta_gbs = real("GB/s")?,
                "memory" => network.memory_gbs = real("GB/s")?,
                "slot" => {
                    let size = crate::cli::values::size(value).ok();
                    let needs = format!("--network: {field:?} needs a size from {LEAST_SLOT} on");
                    network.slot_bytes = size.filter(|bytes| *bytes >= LEAST_SLOT).ok_or(needs)?;
                }
                // Two slots are the least that a ring needs.
                "depth" => network.depth = (real("slots")? as usize).max(2),
                _ => {
                    return Err(format!(
                        "--network: there is no {key:?}; known: alpha message beta memory slot \
                         depth"
                    ));
                }
            }
        }
        Ok(network)
    }

    /// A byte's time through a port; GB/s are thousands of bytes per microsecond.
    pub fn port_us_per_byte(&self) -> f64 {
        1.0 / (self.beta_gbs * 1e3)
    }

    fn memory_us_per_byte(&self) -> f64 {
        1.0 / (self.memory_gbs * 1e3)
    }

    /// What ranks do without the wire of `costs`.
    pub fn machine(&self, costs: &Costs, shared: bool) -> Machine {
        let (port, memory) = (self.port_us_per_byte(), self.memory_us_per_byte());
        let (alpha_us, message_us, send_us_per_byte) = match shared {
            true => (costs.alpha_us, costs.message_us, memory),
            false => (self.alpha_us, self.message_us, port),
        };
        Machine {
            alpha_us,
            message_us,
            send_us_per_byte,
            copy_us_per_byte: memory,
            reduce_us_per_byte: memory,
            depth: self.depth,
            slot_bytes: self.slot_bytes,
        }
    }

    /// The network is the wire, and a host has the library's usual memory at the given pace.
    pub fn costs(&self, nranks: usize) -> Costs {
        Costs {
            copy_us_per_byte: self.memory_us_per_byte(),
            reduce_us_per_byte: self.memory_us_per_byte(),
            wire_alpha_us: self.alpha_us,
            wire_message_us: self.message_us,
            wire_us_per_byte: self.port_us_per_byte(),
            switch_us: 0.0,
            cores: nranks,
            ..Costs::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_network_is_read_and_its_errors_are_named() {
        let network = Network::parse("alpha=5us, beta=50GB/s,slot=1M").unwrap();
        assert_eq!((network.alpha_us, network.beta_gbs, network.slot_bytes), (5.0, 50.0, 1 << 20));
        assert!(Network::parse("gamma=1").unwrap_err().contains("known: alpha"));
        assert!(Network::parse("alpha=fast").is_err());
        for (field, wanted) in [
            ("alpha=2GB/s", "\"alpha=2GB/s\" needs a positive number of us"),
            ("message=1GB/s", "number of us"),
            ("beta=3us", "number of GB/s"),
            ("memory=3us", "number of GB/s"),
            ("depth=4us", "number of slots"),
            ("slot=63", "needs a size from 64 on"),
        ] {
            assert!(Network::parse(field).unwrap_err().contains(wanted), "{field}");
        }
        assert_eq!(Network::parse("slot=64").unwrap().slot_bytes, 64);
        assert!(Network::parse("alpha").is_err());
    }
}
