//! Connections between all ranks in the layout of the device, and what bounds their waits.

use crate::abi;

/// Memory aligned as a device's.
#[derive(Clone, Copy)]
#[repr(C, align(128))]
struct Line([u8; 128]);

fn lines(bytes: usize) -> Vec<Line> {
    vec![Line([0; 128]); bytes.div_ceil(128)]
}

/// A ring of slots from one rank to another, in one channel.
struct Wire {
    slots: Vec<Line>,
    posted: Box<abi::Flag>,
    freed: Box<abi::Flag>,
}

pub struct Wires {
    nranks: usize,
    depth: usize,
    slot_bytes: usize,
    /// By sender, channel and receiver; kept for their memory.
    _wires: Vec<Wire>,
    sends: Vec<Vec<abi::Connection>>,
    receives: Vec<Vec<abi::Connection>>,
}

impl Wires {
    pub fn new(nranks: usize, channels: usize, depth: usize, slot_bytes: usize) -> Wires {
        let mut wires = Vec::new();
        let ends = vec![vec![abi::Connection::default(); channels * nranks]; nranks];
        let (mut sends, mut receives) = (ends.clone(), ends);
        for sender in 0..nranks {
            for receiver in (0..nranks).filter(|receiver| *receiver != sender) {
                for channel in 0..channels {
                    let wire = Wire {
                        slots: lines(depth * slot_bytes),
                        posted: Box::default(),
                        freed: Box::default(),
                    };
                    let connection = abi::Connection {
                        slots: wire.slots.as_ptr() as u64,
                        posted: &raw const *wire.posted as u64,
                        freed: &raw const *wire.freed as u64,
                        position: 0,
                    };
                    sends[sender][channel * nranks + receiver] = connection;
                    receives[receiver][channel * nranks + sender] = connection;
                    wires.push(wire);
                }
            }
        }
        Wires { nranks, depth, slot_bytes, _wires: wires, sends, receives }
    }

    /// What a call says of the connections of a rank.
    pub fn call(&mut self, rank: usize) -> abi::PlanCall {
        abi::PlanCall {
            sends: self.sends[rank].as_mut_ptr() as u64,
            receives: self.receives[rank].as_mut_ptr() as u64,
            npeers: self.nranks as u32,
            depth: self.depth as u32,
            slot_bytes: self.slot_bytes as u64,
            ..Default::default()
        }
    }
}

/// A rank's control block and stop flag.
pub struct Control {
    control: Box<abi::Control>,
    stop: Box<abi::Flag>,
}

impl Control {
    pub fn new() -> Control {
        let control = abi::Control {
            abort: [abi::Flag::default(); abi::BARRIER_BLOCKS],
            report: abi::Report::default(),
            unused_too: [0; 10],
        };
        Control { control: Box::new(control), stop: Box::default() }
    }

    pub fn watch(&self, rank: usize, timeout_ns: u64) -> abi::Watch {
        abi::Watch {
            control: &raw const *self.control as u64,
            stop: &raw const *self.stop as u64,
            timeout_ns,
            rank: rank as u32,
            unused: 0,
        }
    }

    /// What the kernels of the rank had to say, after they ended.
    pub fn report(&self) -> abi::Report {
        // SAFETY: valid memory; the kernels that wrote it have ended.
        unsafe { (&raw const self.control.report).read_volatile() }
    }

    /// As the host does it while kernels run.
    pub fn abort(&self) {
        for flag in &self.control.abort {
            // SAFETY: the field is one that others poll with atomic loads, as this store is one.
            let word = unsafe { &*(&raw const flag.value).cast::<std::sync::atomic::AtomicU64>() };
            // Relaxed: kernels poll it, and nothing else depends on it.
            word.store(1, std::sync::atomic::Ordering::Relaxed);
        }
    }
}
