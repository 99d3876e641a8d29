//! What ring-perf can measure, by the names of nccl-tests' programs.

use ringcomm::plan::Collective;

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Operation {
    AllReduce,
    ReduceScatter,
    AllGather,
    Broadcast,
    Reduce,
    AllToAll,
    Gather,
    Scatter,
    SendRecv,
    PingPong,
    Barrier,
    AllGatherV,
    ReduceScatterV,
    AllToAllV,
    GatherV,
    ScatterV,
}

use Operation::*;

impl Operation {
    pub const ALL: [Operation; 16] = [
        AllReduce,
        ReduceScatter,
        AllGather,
        Broadcast,
        Reduce,
        AllToAll,
        Gather,
        Scatter,
        SendRecv,
        PingPong,
        Barrier,
        AllGatherV,
        ReduceScatterV,
        AllToAllV,
        GatherV,
        ScatterV,
    ];

    pub const fn name(self) -> &'static str {
        match self {
            AllReduce => "all_reduce",
            ReduceScatter => "reduce_scatter",
            AllGather => "all_gather",
            Broadcast => "broadcast",
            Reduce => "reduce",
            AllToAll => "all_to_all",
            Gather => "gather",
            Scatter => "scatter",
            SendRecv => "send_recv",
            PingPong => "ping_pong",
            Barrier => "barrier",
            AllGatherV => "all_gather_v",
            ReduceScatterV => "reduce_scatter_v",
            AllToAllV => "all_to_all_v",
            GatherV => "gather_v",
            ScatterV => "scatter_v",
        }
    }

    pub fn parse(name: &str) -> Option<Operation> {
        let name = name.strip_suffix("_perf").unwrap_or(name);
        Operation::ALL.into_iter().find(|operation| operation.name() == name)
    }

    /// The collective that it calls; `None` for messages.
    pub const fn collective(self) -> Option<Collective> {
        match self {
            AllReduce => Some(Collective::AllReduce),
            ReduceScatter | ReduceScatterV => Some(Collective::ReduceScatter),
            AllGather | AllGatherV => Some(Collective::AllGather),
            Broadcast => Some(Collective::Broadcast),
            Reduce => Some(Collective::Reduce),
            AllToAll | AllToAllV => Some(Collective::AllToAll),
            Gather | GatherV => Some(Collective::Gather),
            Scatter | ScatterV => Some(Collective::Scatter),
            Barrier => Some(Collective::Barrier),
            SendRecv | PingPong => None,
        }
    }

    pub const fn is_vector(self) -> bool {
        matches!(self, AllGatherV | ReduceScatterV | AllToAllV | GatherV | ScatterV)
    }

    pub const fn has_root(self) -> bool {
        matches!(self, Broadcast | Reduce | Gather | GatherV | Scatter | ScatterV)
    }

    pub const fn reduces(self) -> bool {
        matches!(self, AllReduce | ReduceScatter | ReduceScatterV | Reduce)
    }

    /// Whether it moves data at all.
    pub const fn has_data(self) -> bool {
        !matches!(self, Barrier)
    }

    /// Whether send and receive buffer may be the same memory (NCCL's rules, and an all-to-all,
    /// whose blocks of one length change places).
    pub const fn has_in_place(self) -> bool {
        !matches!(self, AllToAllV | SendRecv | PingPong | Barrier)
    }

    /// How many times over an iteration sends its data, one after the other: a time is that of one.
    /// A message that goes there and back takes twice what a message takes.
    pub const fn ways(self) -> usize {
        match self {
            PingPong => 2,
            _ => 1,
        }
    }

    /// What turns size over time into the load of the busiest link, so that figures for different
    /// numbers of ranks compare: an all-reduce sends every byte twice (n-1)/n times, and so on.
    pub fn bus_factor(self, nranks: usize) -> f64 {
        let n = nranks as f64;
        match self {
            AllReduce => 2.0 * (n - 1.0) / n,
            ReduceScatter | ReduceScatterV | AllGather | AllGatherV | AllToAll | AllToAllV
            | Gather | GatherV | Scatter | ScatterV => (n - 1.0) / n,
            Broadcast | Reduce | SendRecv | PingPong => 1.0,
            Barrier => 0.0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_and_factors() {
        for operation in Operation::ALL {
            assert_eq!(Operation::parse(operation.name()), Some(operation));
        }
        assert_eq!(Operation::parse("all_reduce_perf"), Some(AllReduce));
        assert_eq!(AllReduce.bus_factor(4), 1.5);
        assert_eq!(AllGather.bus_factor(4), 0.75);
        assert_eq!(Broadcast.bus_factor(4), 1.0);
    }

    #[test]
    fn what_has_no_form_in_place() {
        let without: Vec<_> = Operation::ALL.into_iter().filter(|o| !o.has_in_place()).collect();
        assert_eq!(without, [SendRecv, PingPong, Barrier, AllToAllV]);
    }
}
