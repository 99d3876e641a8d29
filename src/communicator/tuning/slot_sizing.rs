//! The connections of a communicator: how many slots of how many bytes fit a rank's buffers.

use crate::communicator::call::portions::portion_bytes;
use crate::config::{Config, DEFAULT_BUFF_SIZE, Protection};
use crate::error::{Error, Result};
use crate::executor::links::SegmentMap;
use crate::plan::{CROWDED_STRIDE, PIPELINE_DEPTH, WIRE_STRIDE};
use crate::transport::DEPTH;
use crate::transport::fifo::FifoShape;
use crate::transport::network::Lengths;
use crate::transport::tcp::Settings;

/// The longest a slot is on one host: a message of several is copied in and out at the same time.
/// With twice as much, messages of 512 KiB to 8 MiB take 8 to 35 % longer between near cores, and
/// collectives as long as with this (`benches/results/slot-length-2026-11-27.txt`).
const LONGEST_SLOT: usize = 64 << 10;

/// The same where there are other hosts, to which as long messages go: a slot, what it is reduced
/// with and the result share the second-level cache (1 MiB on Zen 4) with as much again of the
/// slice before.
const LONGEST_BESIDE_WIRE: usize = 128 << 10;

/// Bytes of a rank's rings: as configured, else the default, of which more than two ranks take
/// half, so that all rings together leave room in the last-level cache. With 4 ranks on 2 near
/// cores 64 KiB take 19.3 us in place of 24.2, and 1 MiB 259 in place of 309
/// (`benches/results/far-2026-11-21.txt`).
pub(in crate::communicator) fn buff_size(config: &Config, nranks: usize) -> usize {
    let default = if nranks > 2 { DEFAULT_BUFF_SIZE / 2 } else { DEFAULT_BUFF_SIZE };
    config.buff_size.unwrap_or(default)
}

/// A connection's slots under the buffer budget of one rank.
pub(in crate::communicator) fn geometry(config: &Config, nranks: usize) -> Result<FifoShape> {
    slots_of(buff_size(config, nranks), nranks, LONGEST_SLOT)
}

/// The slots of a connection, `longest` at most, where so many ranks divide so many bytes.
fn slots_of(bytes: usize, nranks: usize, longest: usize) -> Result<FifoShape> {
    /// Bytes of a cache line; a ring's counter takes two, a slot's header one.
    const LINE: usize = 64;
    let share = bytes / (nranks - 1).max(1);
    let slot =
        |depth: usize| (share.saturating_sub(2 * LINE) / depth).saturating_sub(LINE) / LINE * LINE;
    let depth = [DEPTH, 16, 8, 4].into_iter().find(|depth| slot(*depth) >= 8 << 10).unwrap_or(2);
    let slot_bytes = slot(depth).min(longest);
    if slot_bytes < LINE && nranks > 1 {
        return Err(Error::argument(format!(
            "RINGCOMM_BUFFSIZE={bytes} leaves no room for {} peers; give at least {}",
            nranks - 1,
            (nranks - 1) * (2 * LINE + 2 * (LINE + LINE))
        )));
    }
    Ok(FifoShape { depth, slot_bytes: slot_bytes.max(LINE) })
}

/// The longest message between hosts that goes whole, where plans cut none: less than what a
/// socket's buffers hold by default. An all-reduce of 1 MiB, whose messages are this long, takes
/// 8 % less than in five slices (`benches/results/messages-2026-11-25.txt`).
const LONGEST_WHOLE: usize = 512 << 10;

/// The longest message where they are cut: with its frame it fills four of the kernel's segments,
/// which are 65,160 bytes on Ethernet and 65,483 on loopback; a little more would be another one
/// that costs as much (`benches/results/tcp-2026-11-21.txt`). With half of it, sums of 2 to 64 MiB
/// take up to 7 % longer, with twice as much 2 % less to 5 % more
/// (`benches/results/messages-2026-11-25.txt`).
const LONGEST_CUT: usize = 254 << 10;

/// As [`LONGEST_CUT`] of two segments, for ranks that have slots of a host, or seal what they send:
/// a cipher works on one message while the socket has another.
const LONGEST_SHORT: usize = 127 << 10;

/// What a communicator's ranks on several hosts agree on.
pub(in crate::communicator) struct OnHosts {
    /// Between two ranks of one host.
    pub slots: FifoShape,
    /// Between two hosts.
    pub wire: Settings,
}

/// Connections where the host that has most ranks has `most`. Nobody's memory is shared between
/// hosts, so only those of a host divide it among them, as the ranks of one machine do; less than
/// the default is divided among all.
///
/// Where some rank is on a device, the user's own messages go through its pinned memory, of which
/// each has a share: all cut them so that it holds two pieces, or a slot of all ranks'.
pub(in crate::communicator) fn on_hosts(
    config: &Config,
    nranks: usize,
    most: usize,
    has_devices: bool,
) -> Result<OnHosts> {
    let short = |slots: FifoShape| Lengths { cut: slots.slot_bytes.min(LONGEST_SHORT), whole: 0 };
    let wire = |geometry: FifoShape, steps: Lengths, messages: Lengths| {
        let Config { protection, nsocks: data_sockets, .. } = *config;
        Settings { geometry, steps, messages, protection, data_sockets }
    };
    if is_less(config, nranks) {
        let slots = slots_of(buff_size(config, nranks), nranks, LONGEST_BESIDE_WIRE)?;
        return Ok(OnHosts { slots, wire: wire(slots, short(slots), short(slots)) });
    }
    // A share holds a slot, too, where messages between ranks of a host go through both.
    let among = if has_devices && most > 1 { nranks } else { most };
    // No less than ranks have that ask for nothing.
    let bytes = buff_size(config, nranks).max(default_bytes(among));
    let slots = slots_of(bytes, among, LONGEST_BESIDE_WIRE)?;
    let is_long = most == 1 && config.protection != Protection::Encrypted;
    let steps = match is_long {
        // Several sockets share a message only in pieces.
        true if config.nsocks > 1 => Lengths { cut: LONGEST_CUT, whole: 0 },
        true => Lengths { cut: LONGEST_CUT, whole: LONGEST_WHOLE },
        false => short(slots),
    };
    let messages = match has_devices {
        true => Lengths { cut: steps.cut.min(half_share(config, nranks)), whole: 0 },
        false => steps,
    };
    let slot_bytes = slots.slot_bytes.max(steps.cut).max(steps.whole);
    Ok(OnHosts { slots, wire: wire(FifoShape { slot_bytes, ..slots }, steps, messages) })
}

/// Whether a rank is to have less memory than by default.
fn is_less(config: &Config, nranks: usize) -> bool {
    buff_size(config, nranks) < default_bytes(nranks)
}

fn default_bytes(nranks: usize) -> usize {
    buff_size(&Config::default(), nranks)
}

/// Bytes of half of what a message has of pinned memory, in whole lines.
fn half_share(config: &Config, nranks: usize) -> usize {
    (portion_bytes(buff_size(config, nranks), nranks) / nranks / 2 / 64 * 64).max(64)
}

/// Bytes of a segment in which the rings of any [`OnHosts`] have room: it is made before the ranks
/// know who shares a host.
pub(in crate::communicator) fn segment_bytes(config: &Config, nranks: usize) -> Result<usize> {
    let bytes = |most: usize, has_devices: bool| {
        on_hosts(config, nranks, most, has_devices)
            .map(|on_hosts| SegmentMap::new(most, on_hosts.slots).bytes())
    };
    (1..=nranks)
        .try_fold(0, |longest, most| Ok(bytes(most, false)?.max(bytes(most, true)?).max(longest)))
}

/// Slices between two stages of a plan, as far as connections are deep enough.
pub(super) fn stride(depth: usize, nranks: usize, nhosts: usize, is_crowded: bool) -> usize {
    let wanted = match nhosts {
        1 if is_crowded => CROWDED_STRIDE,
        nhosts if nhosts > 1 && nhosts == nranks => WIRE_STRIDE,
        _ => 1,
    };
    (depth / PIPELINE_DEPTH).clamp(1, wanted)
}

/// The longest a window is: its scratch, and the piece of the vector that is copied to or from it,
/// share the second-level cache (1 MiB). With 4 ranks on 2 cores 16 MiB in place take 3.6 ms, with
/// half of it 3.9, with twice as much 4.6 (`benches/results/windows-2026-11-22.txt`).
const LONGEST_WINDOW: usize = 512 << 10;

/// The most of a vector that goes through a rank's shared scratch at once: no more than its slots
/// hold, so that who gives it little memory gets short windows, too.
pub(super) fn window_bytes(geometry: FifoShape, nranks: usize) -> usize {
    let slots = (nranks - 1).saturating_mul(geometry.depth * geometry.slot_bytes);
    slots.min(LONGEST_WINDOW)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::algorithm::plan;
    use crate::algorithm::select::{Costs, Hosts, Question, choose};
    use crate::executor::chunk_layout::Layout;
    use crate::executor::compile_plan::{CompileShape, CompiledPlan, Cut};
    use crate::plan::Collective;

    fn map(config: &Config, nranks: usize) -> SegmentMap {
        SegmentMap::new(nranks, geometry(config, nranks).unwrap())
    }

    #[test]
    fn stages_are_as_far_apart_as_connections_allow() {
        assert_eq!([32, 16, 8, 4, 2].map(|depth| stride(depth, 4, 4, true)), [4, 4, 2, 1, 1]);
        assert_eq!([32, 8].map(|depth| stride(depth, 4, 1, true)), [4, 2]);
        // On one host where everybody has a core, and where hosts have several ranks.
        assert_eq!((stride(32, 2, 1, false), stride(32, 4, 2, true)), (1, 1));
    }

    #[test]
    fn who_asks_for_the_size_of_the_default_gets_all_of_it() {
        let asked = Config { buff_size: Some(DEFAULT_BUFF_SIZE), ..Config::default() };
        assert_eq!(buff_size(&asked, 4), DEFAULT_BUFF_SIZE);
        assert_eq!(buff_size(&Config::default(), 4), DEFAULT_BUFF_SIZE / 2);
        assert_eq!(buff_size(&Config::default(), 2), DEFAULT_BUFF_SIZE);
    }

    #[test]
    fn a_segment_is_the_pages_and_at_most_the_buffers_that_were_asked_for() {
        let pages = map(&Config::default(), 1).bytes();
        // A control page of about 70 KiB, and as much again for messages; a page for devices.
        assert!(pages <= 256 << 10, "{pages}");
        for nranks in [2, 3, 4, 7, 8, 64, 100, 1000, 4096] {
            for asked in [None, Some(1), Some(2), Some(4), Some(64), Some(1024)] {
                let buff_size = asked.map(|mib: usize| (mib << 20) + 1000);
                let config = Config { buff_size, ..Config::default() };
                let Ok(geometry) = geometry(&config, nranks) else {
                    // Some 400 bytes for each of 4,095 peers are more than 1 MiB.
                    assert!(nranks == 4096 && asked == Some(1));
                    continue;
                };
                let bytes = SegmentMap::new(nranks, geometry).bytes() - pages;
                let most = super::buff_size(&config, nranks);
                assert!(bytes <= most, "{nranks} ranks, {asked:?} MiB: {bytes} of {most}");
            }
        }
    }

    /// Slots where there are other hosts, divided among so many.
    fn beside_wire(config: &Config, nranks: usize) -> FifoShape {
        slots_of(super::buff_size(config, nranks), nranks, LONGEST_BESIDE_WIRE).unwrap()
    }

    /// Of the pinned memory of a rank on a device.
    fn share(nranks: usize) -> usize {
        portion_bytes(buff_size(&Config::default(), nranks), nranks) / nranks / 64 * 64
    }

    /// Without devices.
    fn agreed(config: &Config, nranks: usize, most: usize) -> OnHosts {
        on_hosts(config, nranks, most, false).unwrap()
    }

    #[test]
    fn ranks_of_other_hosts_take_nothing_from_the_slots_of_a_host() {
        let default = Config { protection: Protection::Checksum, ..Config::default() };
        let alone = beside_wire(&default, 1).slot_bytes;
        for nranks in [2, 3, 8, 100] {
            let long = Lengths { cut: LONGEST_CUT, whole: LONGEST_WHOLE };
            let OnHosts { slots, wire: Settings { geometry: wire, steps, messages, .. } } =
                agreed(&default, nranks, 1);
            assert_eq!((slots.slot_bytes, wire.slot_bytes), (alone, LONGEST_WHOLE), "{nranks}");
            assert_eq!((slots.depth, wire.depth), (DEPTH, DEPTH));
            assert_eq!((steps, messages), (long, long));
            // A share of pinned memory holds two pieces of a message.
            let OnHosts { slots, wire: Settings { geometry: wire, steps, messages, .. } } =
                on_hosts(&default, nranks, 1, true).unwrap();
            assert_eq!((slots.slot_bytes, wire.slot_bytes), (alone, LONGEST_WHOLE));
            assert_eq!((wire.depth, steps, messages.whole), (DEPTH, long, 0));
            assert!(2 * messages.cut <= share(nranks) && messages.cut >= 9 << 10, "{nranks}");
        }
        for (nranks, most) in [(4, 2), (17, 2), (66, 2), (800, 8)] {
            let OnHosts { slots, wire: Settings { messages, .. } } =
                on_hosts(&default, nranks, most, true).unwrap();
            assert!(messages.cut <= share(nranks) && slots.slot_bytes <= share(nranks));
            assert_eq!(messages.whole, 0);
        }
        let spread = agreed(&Config { nsocks: 2, ..default.clone() }, 8, 1).wire;
        let pieces = Lengths { cut: LONGEST_CUT, whole: 0 };
        assert_eq!((spread.steps, spread.geometry.slot_bytes), (pieces, LONGEST_CUT));
        let sealed = Config { protection: Protection::Encrypted, ..Config::default() };
        let OnHosts { slots, wire: Settings { geometry: wire, steps, messages, .. } } =
            agreed(&sealed, 8, 1);
        let short = Lengths { cut: LONGEST_SHORT, whole: 0 };
        assert_eq!((wire, steps, messages), (slots, short, short));
        for (nranks, most) in [(4, 2), (5, 4), (64, 8), (800, 100)] {
            let OnHosts { slots, wire: Settings { geometry: wire, steps, messages, .. } } =
                agreed(&default, nranks, most);
            assert_eq!((slots, wire), (beside_wire(&default, most), slots));
            assert_eq!((steps.whole, messages), (0, steps), "a host's ranks have no slots for it");
            assert!(steps.cut <= slots.slot_bytes && steps.cut <= LONGEST_SHORT);
            let map = SegmentMap::new(most, slots);
            assert!(map.within(segment_bytes(&default, nranks).unwrap()).bytes() <= 5 << 20);
        }
        // Less than the default is for all peers, wherever they are; more is not for less.
        let given = |bytes| Config { buff_size: Some(bytes), ..default.clone() };
        let OnHosts { slots, wire: Settings { geometry: wire, steps, messages, .. } } =
            agreed(&given(1 << 20), 8, 1);
        assert_eq!((slots, wire), (geometry(&given(1 << 20), 8).unwrap(), slots));
        assert_eq!((steps.cut, steps.whole, messages), (slots.slot_bytes, 0, steps));
        for bytes in [1 << 20, 64 << 20] {
            let all = SegmentMap::new(8, beside_wire(&given(bytes), 8)).bytes();
            assert_eq!(segment_bytes(&given(bytes), 8).unwrap(), all, "no more than slots take");
        }
        const MIB: usize = 1 << 20;
        for bytes in [2 * MIB, 5 * MIB / 2, 3 * MIB, 4 * MIB, 12 * MIB] {
            let OnHosts { slots, wire: Settings { steps, .. } } = agreed(&given(bytes), 8, 1);
            assert!(slots.slot_bytes >= alone && steps.whole == LONGEST_WHOLE);
            for most in 1..=8 {
                let slots = agreed(&given(bytes), 8, most).slots;
                assert!(slots.slot_bytes >= agreed(&default, 8, most).slots.slot_bytes);
                SegmentMap::new(most, slots).within(segment_bytes(&given(bytes), 8).unwrap());
            }
        }
    }

    #[test]
    fn slots_are_shorter_where_no_message_goes_to_another_host() {
        let of = |nranks| geometry(&Config::default(), nranks).unwrap();
        assert_eq!((of(2).slot_bytes, of(2).depth), (LONGEST_SLOT, DEPTH));
        assert!(of(4).slot_bytes < LONGEST_SLOT && of(4) == beside_wire(&Config::default(), 4));
    }

    /// Bind what is chosen for one element, and for some, of each rank.
    fn bind_chosen(collective: Collective, nranks: usize, element: usize, associative: bool) {
        let slot_bytes = geometry(&Config::default(), nranks).unwrap().slot_bytes;
        for count in [1, 7, 1000] {
            let vector = matches!(
                collective,
                Collective::AllReduce | Collective::Broadcast | Collective::Reduce
            );
            let blocks = if vector { 1 } else { nranks };
            let barrier = collective == Collective::Barrier;
            let question = Question {
                collective,
                nranks,
                hosts: Hosts::one(nranks),
                bytes: if barrier { 0 } else { blocks * count * element },
                element,
                associative: associative || !collective.reduces(),
                deterministic: false,
                direct: false,
                in_place: false,
                slot_bytes,
                whole_bytes: 0,
                forced: None,
            };
            let choice = choose(&question, &Costs { cores: nranks, ..Costs::default() });
            let plan = |rank| plan(choice.algorithm, collective, rank, nranks, 0).unwrap();
            for rank in [0, nranks - 1] {
                let mine = plan(rank);
                let layout = Layout::new(collective, rank, nranks, mine.nchunks, count, None);
                // The widest and longest messages are theirs.
                let plans = [0, 1, nranks / 2, nranks - 1].into_iter().map(plan);
                let shape = CompileShape {
                    layout: &layout,
                    element,
                    reduction: None,
                    slot_bytes,
                    pipelined: false,
                    cut: Cut::new(plans, &layout, element),
                };
                let bound = CompiledPlan::new(&mine, shape);
                assert!(bound.is_ok(), "{question:?} {choice:?}: {:?}", bound.err());
            }
        }
    }

    #[test]
    fn what_is_chosen_for_many_ranks_fits_their_slots() {
        for nranks in [512, 1024, 4096] {
            for collective in Collective::ALL {
                for element in [1, 2, 4, 8] {
                    bind_chosen(collective, nranks, element, true);
                }
                bind_chosen(collective, nranks, 4, false);
            }
        }
    }

    #[test]
    fn what_is_forced_and_does_not_fit_gives_way() {
        use crate::algorithm::Algorithm::Doubling;
        let question = |element, nranks| Question {
            collective: Collective::AllGather,
            nranks,
            hosts: Hosts::one(nranks),
            bytes: nranks * element,
            element,
            associative: true,
            deterministic: false,
            direct: false,
            in_place: false,
            slot_bytes: geometry(&Config::default(), nranks).unwrap().slot_bytes,
            whole_bytes: 0,
            forced: Some(Doubling),
        };
        let chosen = |question| choose(&question, &Costs::default()).algorithm;
        assert_eq!(chosen(question(4, 256)), Doubling);
        assert_ne!(chosen(question(4, 1024)), Doubling);
    }
}
