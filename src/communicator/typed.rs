//! The Rust interface: safe collectives over slices.
//!
//! A slice says its type and its length, so nothing here is `unsafe`: what two ranks give that does
//! not fit together is an error on both, and no memory is touched after a call has returned.
#![allow(unsafe_code)]

use super::{Call, Communicator, Message};
use crate::bootstrap::rendezvous::detect;
use crate::config::Config;
use crate::error::{Error, Result};
use crate::os::environment;
use crate::plan::Collective;
use crate::types::{DataType, ReduceOp};
use std::marker::PhantomData;

/// A type that collectives move and add.
///
/// ```
/// # use ringcomm::{Communicator, Config, ReduceOp, bf16, f16};
/// # let ranks = Communicator::init_all(2, &Config::default())?;
/// # std::thread::scope(|scope| {
/// #     for comm in &ranks {
/// #         scope.spawn(move || {
/// let mut gradient = [bf16::from_f32(1.5), bf16::from_f32(-2.0)];
/// comm.all_reduce_in_place(&mut gradient, ReduceOp::Sum).unwrap();
/// assert_eq!(gradient.map(f32::from), [3.0, -4.0]);
/// #             let mut half = [f16::from_f32(0.25)];
/// #             comm.all_reduce_in_place(&mut half, ReduceOp::Sum).unwrap();
/// #             assert_eq!(half.map(f32::from), [0.5]);
/// #         });
/// #     }
/// # });
/// # Ok::<(), ringcomm::Error>(())
/// ```
///
/// # Safety
/// [`Element::TYPE`] is the type's own, and every pattern of its bits is a value.
pub unsafe trait Element: Copy + Send + Sync + 'static {
    /// The number by which ranks name it.
    const TYPE: DataType;
}

macro_rules! elements {
    ($($rust:ty, $name:ident;)*) => {$(
        // SAFETY: a number without padding, of the type that is named.
        unsafe impl Element for $rust {
            const TYPE: DataType = DataType::$name;
        }
    )*};
}

elements! {
    i8, Int8;
    u8, Uint8;
    i16, Int16;
    u16, Uint16;
    i32, Int32;
    u32, Uint32;
    i64, Int64;
    u64, Uint64;
    f32, Float32;
    f64, Float64;
    half::f16, Float16;
    half::bf16, Bfloat16;
}

/// Sends and receives that run together, in any order.
///
/// ```
/// # use ringcomm::{Communicator, Config};
/// # let ranks = Communicator::init_all(2, &Config::default())?;
/// # std::thread::scope(|scope| {
/// #     for comm in &ranks {
/// #         scope.spawn(move || {
/// let (mine, mut theirs) = ([comm.rank() as f32; 4], [0.0; 4]);
/// let peer = 1 - comm.rank();
/// comm.messages().send(&mine, peer).recv(&mut theirs, peer).run().unwrap();
/// assert_eq!(theirs, [peer as f32; 4]);
/// #         });
/// #     }
/// # });
/// # Ok::<(), ringcomm::Error>(())
/// ```
#[must_use = "messages go when `run` is called"]
pub struct Messages<'a> {
    comm: &'a Communicator,
    messages: Vec<Message>,
    buffers: PhantomData<&'a mut ()>,
}

impl<'a> Messages<'a> {
    /// Send all of `buffer` to `peer`.
    pub fn send<T: Element>(mut self, buffer: &'a [T], peer: usize) -> Messages<'a> {
        let (address, count, data_type) = (buffer.as_ptr().cast(), buffer.len(), T::TYPE);
        self.messages.push(Message::Send { buffer: address, count, data_type, peer });
        self
    }

    /// Receive as many elements from `peer` as `buffer` has.
    pub fn recv<T: Element>(mut self, buffer: &'a mut [T], peer: usize) -> Messages<'a> {
        let (address, count, data_type) = (buffer.as_mut_ptr().cast(), buffer.len(), T::TYPE);
        self.messages.push(Message::Recv { buffer: address, count, data_type, peer });
        self
    }

    /// Run all of them; returns when every one is done.
    pub fn run(self) -> Result<()> {
        // SAFETY: the slices are borrowed until this returns, and no two that are written overlap.
        unsafe { self.comm.exchange(&self.messages) }
    }
}

/// Collectives and messages of one rank.
///
/// Every rank makes the same calls in the same order. A call waits for its peers, and ends with an
/// error that names the rank where one died, aborted, called something else or is late. An invalid
/// argument leaves the communicator as it was; any other error breaks it.
impl Communicator {
    /// Join the ranks that a launcher started: ringrun, torchrun, mpirun, horovodrun or srun.
    ///
    /// With RINGCOMM_SECRET set on all hosts, ranks of several hosts meet. Errors say what was
    /// found in the environment and what is missing.
    pub fn from_environment(config: &Config) -> Result<Communicator> {
        Communicator::from_url(None, None, None, config)
    }

    /// Join the ranks that meet at a place: `tcp://host:port`, `file:///path`, `env://`,
    /// `slurm://`; `None` asks the environment. The rank and the number of ranks come from the URL
    /// or the environment where they are `None`.
    ///
    /// ```no_run
    /// use ringcomm::{Communicator, Config};
    ///
    /// let comm = Communicator::from_url(
    ///     Some("tcp://127.0.0.1:29500"), Some(1), Some(0), &Config::default())?;
    /// assert_eq!((comm.rank(), comm.nranks()), (0, 1));
    /// # Ok::<(), ringcomm::Error>(())
    /// ```
    pub fn from_url(
        url: Option<&str>,
        nranks: Option<usize>,
        rank: Option<usize>,
        config: &Config,
    ) -> Result<Communicator> {
        let found = detect(environment::variable, url, rank, nranks)?;
        Communicator::init_found(&found, config)
    }

    /// Combine `send` of all ranks element by element into `recv` of every rank. Both are as long,
    /// on every rank.
    ///
    /// ```
    /// use ringcomm::{Communicator, Config, ReduceOp};
    ///
    /// let ranks = Communicator::init_all(2, &Config::default())?;
    /// std::thread::scope(|scope| {
    ///     for comm in &ranks {
    ///         scope.spawn(move || {
    ///             let send = [1.0f32 + comm.rank() as f32; 1000];
    ///             let mut recv = [0.0; 1000];
    ///             comm.all_reduce(&send, &mut recv, ReduceOp::Sum).unwrap();
    ///             assert_eq!(recv, [3.0; 1000]);
    ///         });
    ///     }
    /// });
    /// # Ok::<(), ringcomm::Error>(())
    /// ```
    pub fn all_reduce<T: Element>(&self, send: &[T], recv: &mut [T], op: ReduceOp) -> Result<()> {
        equal("all_reduce", "recv", recv.len(), send.len())?;
        self.collective(Collective::AllReduce, send, recv, (send.len(), op, 0))
    }

    /// [`Communicator::all_reduce`] with the result where the input was.
    pub fn all_reduce_in_place<T: Element>(&self, buffer: &mut [T], op: ReduceOp) -> Result<()> {
        let (whole, count) = (buffer.as_mut_ptr(), buffer.len());
        self.at(Collective::AllReduce, (whole.cast_const(), whole), (count, op, 0))
    }

    /// Combine `send` of all ranks into `recv` of rank `root`; the others give `None`.
    pub fn reduce<T: Element>(
        &self,
        send: &[T],
        recv: Option<&mut [T]>,
        op: ReduceOp,
        root: usize,
    ) -> Result<()> {
        let recv = self.of_root("reduce", "recv", recv, root, send.len())?;
        self.collective(Collective::Reduce, send, recv, (send.len(), op, root))
    }

    /// Copy `buffer` of rank `root` into that of every other rank.
    pub fn broadcast<T: Element>(&self, buffer: &mut [T], root: usize) -> Result<()> {
        let (whole, count) = (buffer.as_mut_ptr(), buffer.len());
        self.at(Collective::Broadcast, (whole.cast_const(), whole), (count, ReduceOp::Sum, root))
    }

    /// Collect `send` of all ranks, one after the other, in `recv` of every rank.
    pub fn all_gather<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        equal("all_gather", "recv", recv.len(), self.blocks(send.len()))?;
        self.collective(Collective::AllGather, send, recv, (send.len(), ReduceOp::Sum, 0))
    }

    /// Combine `send` of all ranks, and give each rank its block of the result: block `r` of as
    /// many elements as `recv` has to rank `r`.
    pub fn reduce_scatter<T: Element>(
        &self,
        send: &[T],
        recv: &mut [T],
        op: ReduceOp,
    ) -> Result<()> {
        equal("reduce_scatter", "send", send.len(), self.blocks(recv.len()))?;
        let count = recv.len();
        self.collective(Collective::ReduceScatter, send, recv, (count, op, 0))
    }

    /// Collect `send` of all ranks, one after the other, in `recv` of rank `root`; the others give
    /// `None`.
    pub fn gather<T: Element>(
        &self,
        send: &[T],
        recv: Option<&mut [T]>,
        root: usize,
    ) -> Result<()> {
        let recv = self.of_root("gather", "recv", recv, root, self.blocks(send.len()))?;
        self.collective(Collective::Gather, send, recv, (send.len(), ReduceOp::Sum, root))
    }

    /// Give each rank its block of `send` of rank `root`; the others give `None`.
    pub fn scatter<T: Element>(
        &self,
        send: Option<&[T]>,
        recv: &mut [T],
        root: usize,
    ) -> Result<()> {
        let count = recv.len();
        let send = match send {
            Some(send) if self.rank() == root => {
                equal("scatter", "send", send.len(), self.blocks(count))?;
                send
            }
            None if self.rank() != root => &[],
            _ => return Err(misplaced("scatter", "send", root)),
        };
        self.collective(Collective::Scatter, send, recv, (count, ReduceOp::Sum, root))
    }

    /// Exchange blocks: block `r` of `send` becomes block `s` of rank `r`'s `recv`, where `s` is
    /// this rank. Both are as long, and hold a block for each rank.
    pub fn all_to_all<T: Element>(&self, send: &[T], recv: &mut [T]) -> Result<()> {
        equal("all_to_all", "recv", recv.len(), send.len())?;
        let count = send.len() / self.nranks();
        equal("all_to_all", "send", send.len(), self.blocks(count))?;
        self.collective(Collective::AllToAll, send, recv, (count, ReduceOp::Sum, 0))
    }

    /// Return when every rank has called it.
    pub fn barrier(&self) -> Result<()> {
        // SAFETY: a barrier has no buffers.
        unsafe { self.call(&Call::new(Collective::Barrier, DataType::Uint8)) }
    }

    /// Begin a set of sends and receives that run together.
    pub fn messages(&self) -> Messages<'_> {
        Messages { comm: self, messages: Vec::new(), buffers: PhantomData }
    }

    /// Elements of a block for each rank.
    fn blocks(&self, count: usize) -> usize {
        count.saturating_mul(self.nranks())
    }

    /// What only the root has to give.
    fn of_root<'a, T>(
        &self,
        call: &str,
        name: &str,
        buffer: Option<&'a mut [T]>,
        root: usize,
        wanted: usize,
    ) -> Result<&'a mut [T]> {
        match buffer {
            Some(buffer) if self.rank() == root => {
                equal(call, name, buffer.len(), wanted)?;
                Ok(buffer)
            }
            None if self.rank() != root => Ok(&mut []),
            _ => Err(misplaced(call, name, root)),
        }
    }

    fn collective<T: Element>(
        &self,
        collective: Collective,
        send: &[T],
        recv: &mut [T],
        what: (usize, ReduceOp, usize),
    ) -> Result<()> {
        self.at(collective, (send.as_ptr(), recv.as_mut_ptr()), what)
    }

    /// A collective on memory that is as long as its callers have checked.
    fn at<T: Element>(
        &self,
        collective: Collective,
        (send, recv): (*const T, *mut T),
        (count, op, root): (usize, ReduceOp, usize),
    ) -> Result<()> {
        if op == ReduceOp::PreMulSum {
            let why = "PreMulSum has a factor, which the Rust interface does not take: multiply \
                       the elements before";
            return Err(Error::argument(why));
        }
        let (send, recv) = (send.cast(), recv.cast());
        let call = Call { send, recv, count, op, root, ..Call::new(collective, T::TYPE) };
        // SAFETY: slices of the lengths that the collective defines, borrowed until this returns;
        // what a peer gives that does not fit is refused before memory is touched.
        unsafe { self.call(&call) }
    }
}

/// Refuse a slice of another length than the call needs.
fn equal(call: &str, name: &str, len: usize, wanted: usize) -> Result<()> {
    match len == wanted {
        true => Ok(()),
        false => Err(Error::argument(format!("{call}: {name} has {len} elements, not {wanted}"))),
    }
}

fn misplaced(call: &str, name: &str, root: usize) -> Error {
    Error::argument(format!("{call}: rank {root}, the root, gives {name}; other ranks give None"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fmt::Debug;

    const NRANKS: usize = 3;

    /// Run something on every rank, each a thread, and give what came of it by rank.
    fn on_ranks<T: Send>(work: impl Fn(&Communicator) -> T + Sync) -> Vec<T> {
        let ranks = Communicator::init_all(NRANKS, &Config::default()).unwrap();
        std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> =
                ranks.iter().map(|comm| scope.spawn(move || work(comm))).collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        })
    }

    fn every_collective<T: Element + PartialEq + Debug>(number: impl Fn(usize) -> T + Sync) {
        on_ranks(|comm| {
            let (rank, n) = (comm.rank(), comm.nranks());
            let all =
                |of: &dyn Fn(usize) -> usize| (0..n).map(|r| number(of(r))).collect::<Vec<T>>();
            let (mine, zero) = ([number(rank + 1); 2], number(0));
            let sum = [number(6); 2];
            let mut recv = [zero; 2];
            comm.all_reduce(&mine, &mut recv, ReduceOp::Sum).unwrap();
            assert_eq!(recv, sum);
            let mut buffer = mine;
            comm.all_reduce_in_place(&mut buffer, ReduceOp::Max).unwrap();
            assert_eq!(buffer, [number(3); 2]);
            let is_root = rank == 1;
            comm.reduce(&mine, is_root.then_some(&mut buffer[..]), ReduceOp::Sum, 1).unwrap();
            assert_eq!(buffer, if is_root { sum } else { [number(3); 2] });
            comm.broadcast(&mut buffer, 1).unwrap();
            assert_eq!(buffer, sum);
            let mut gathered = vec![zero; n];
            comm.all_gather(&[number(rank)], &mut gathered).unwrap();
            assert_eq!(gathered, all(&|r| r));
            comm.gather(&[number(rank + 5)], is_root.then_some(&mut gathered[..]), 1).unwrap();
            assert_eq!(gathered, if is_root { all(&|r| r + 5) } else { all(&|r| r) });
            let mut block = [zero];
            comm.scatter(is_root.then_some(&gathered[..]), &mut block, 1).unwrap();
            assert_eq!(block, [number(rank + 5)]);
            comm.reduce_scatter(&all(&|r| r), &mut block, ReduceOp::Sum).unwrap();
            assert_eq!(block, [number(3 * rank)]);
            comm.all_to_all(&all(&|r| 10 * rank + r), &mut gathered).unwrap();
            assert_eq!(gathered, all(&|r| 10 * r + rank));
            comm.barrier().unwrap();
            let (next, last) = ((rank + 1) % n, (rank + n - 1) % n);
            comm.messages().send(&mine, next).recv(&mut recv, last).run().unwrap();
            assert_eq!(recv, [number(last + 1); 2]);
        });
    }

    #[test]
    fn every_collective_of_every_type_is_its_definition() {
        every_collective(|number| number as u8);
        every_collective(|number| number as i16);
        every_collective(|number| number as u32);
        every_collective(|number| number as i64);
        every_collective(|number| number as f32);
        every_collective(|number| number as f64);
    }

    /// What does not fit is refused before anything is sent, and the communicator goes on.
    #[test]
    fn slices_of_other_lengths_are_refused_by_name() {
        on_ranks(|comm| {
            let refused = |outcome: Result<()>, text: &str| {
                let error = outcome.unwrap_err().to_string();
                assert!(error.contains(text), "{error}");
            };
            let (send, mut recv) = ([1.0f32; 4], [0.0f32; 5]);
            let sum = ReduceOp::Sum;
            refused(comm.all_reduce(&send, &mut recv, sum), "recv has 5 elements, not 4");
            refused(comm.all_gather(&send, &mut recv), "all_gather: recv has 5 elements, not 12");
            refused(comm.reduce_scatter(&send, &mut recv, sum), "send has 4 elements, not 15");
            refused(comm.all_to_all(&send, &mut recv[..4]), "send has 4 elements, not 3");
            let both = (comm.rank() != 0).then_some(&mut recv[..]);
            refused(comm.reduce(&send, both, sum, 0), "rank 0, the root, gives recv");
            refused(comm.scatter(None, &mut recv, comm.rank()), "the root, gives send");
            refused(comm.broadcast(&mut recv, 3), "3");
            refused(comm.all_reduce_in_place(&mut recv, ReduceOp::PreMulSum), "PreMulSum");
            comm.all_reduce_in_place(&mut recv, sum).unwrap();
        });
    }

    #[test]
    fn ranks_that_give_other_lengths_all_fail() {
        let errors = on_ranks(|comm| {
            let mut buffer = vec![0.0f32; 100 + comm.rank()];
            comm.all_reduce_in_place(&mut buffer, ReduceOp::Sum).unwrap_err().to_string()
        });
        assert!(errors.iter().all(|error| error.contains("AllReduce")), "{errors:?}");
    }
}
