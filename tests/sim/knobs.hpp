// SPDX-License-Identifier: BSD-3-Clause
// The parameters of a run, all drawn from the seed.
#pragma once

#include <array>
#include <cstdint>
#include <vector>

#include "rdma/core/path.hpp"
#include "tests/sim/world.hpp"

namespace sim {

using namespace std::chrono_literals;

/// How the connections behave.
struct NetworkKnobs {
  /// true: as over TCP, bytes wait in a socket until the receiver looks at them. false: as over
  /// verbs, they land when they arrive, and a message waits for a posted receive.
  bool stream = false;
  unsigned window = 64;  ///< stream: messages under way until the sender stalls
  Duration latency_min{};
  Duration latency_max{};
  std::uint64_t rate = 0;    ///< bytes per second, of each direction of a connection; 0 = no limit
  unsigned eager = 500;      ///< per mille: sent at once when flushed
  Duration departure_max{};  ///< else up to so long later
  Duration poll_max{};       ///< from an arrival until somebody looks
  unsigned slow_poll = 0;    ///< per mille: a hundred times that
  unsigned late_read = 0;    ///< per mille, at the server: up to late_read_max
  Duration late_read_max{};
  bool overtakes = false;        ///< stream: small requests and answers, those with more data
  Duration transport_timeout{};  ///< until unacknowledged data breaks a connection
};

/// How the storage behaves while faults are allowed.
struct StorageKnobs {
  unsigned at_once = 0;  ///< per mille: done before submit() returns
  Duration delay_max{};
  unsigned slow = 0;   ///< per mille: a hundred times that
  unsigned stall = 0;  ///< per mille: up to stall_max
  Duration stall_max{};
  unsigned fail = 0;         ///< per mille of the operations
  unsigned break_queue = 0;  ///< likewise
  unsigned hang = 0;         ///< likewise: do not end as long as faults are allowed
  /// Per mille of what an OPEN does to files and to the state directory: it takes longer than the
  /// server waits, or does not end as long as faults are allowed.
  unsigned hang_open = 0;
};

struct ClientKnobs {
  std::uint16_t lanes = 1;
  /// Asks the server to invalidate the key of each read, as a Linux client does.
  bool linux_like = false;
  /// Sends what was in flight again at once, and without generations, as a Linux client does.
  bool resends_at_once = false;
  bool extensions = true;
  bool survives = false;        ///< sessions outlive their paths; else they end with the first one
  bool exactly_once = false;    ///< with extensions
  bool access_notices = false;  ///< likewise
  bool races = false;           ///< likewise, with exactly_once
  bool claims = false;          ///< likewise
  bool renews = false;          ///< sessions outlive the server's memory of them
  unsigned paths = 1;
  rtrs::PathPolicy policy{};
  bool ranked = false;         ///< the paths are not equally good
  Duration no_path_timeout{};  ///< 0 = for ever
  Duration settle_time{};
  Duration reconnect_min{};
  Duration reconnect_max{};
  bool same_name = false;     ///< a new session has the name of the last one
  bool lazy = false;          ///< nobody looks at a lane on which nobody waits
  unsigned concurrency = 1;   ///< operations at a time
  Duration think_max{};       ///< between two decisions
  unsigned cancel = 0;        ///< per mille of the decisions
  unsigned close = 0;         ///< likewise
  unsigned join = 80;         ///< likewise, to do I/O: another user shares a device
  unsigned disconnect = 0;    ///< likewise
  unsigned change_paths = 0;  ///< likewise: one is added, or removed
  unsigned foreign = 0;       ///< per mille of its paths but the first: lead to another server
  bool proves = false;        ///< proves whose it is, if its server wants that
  unsigned impostor = 0;      ///< per mille of its connections prove to be somebody else's
  bool knows_server = false;  ///< who the server is, from the beginning
};

struct DiskKnobs {
  std::uint64_t size = 0;  ///< bytes
  std::uint32_t block = 512;
  std::uint32_t discard_granularity = 0;
  bool backend_read_only = false;
  bool export_read_only = false;
  bool can_discard = false;
  bool can_write_zeroes = false;
  bool can_fast_zero = false;
  bool can_flush = true;
  bool can_fua = false;
  bool volatile_cache = false;
  std::array<std::uint8_t, 16> uuid{};  ///< zeros: unknown
};

/// How often what breaks; a mean time of zero is never.
struct FaultKnobs {
  Duration mean{};
  bool cut = false;
  bool late = false;     ///< a connection is over for the client, and what it sent arrives late
  bool silence = false;  ///< messages vanish, nobody is told
  bool mute = false;     ///< connection 0 of a path says nothing any more
  bool stall = false;    ///< a connection is slow for a while
  bool large = false;    ///< a path loses what is large for a while, see Obstacle
  bool idle = false;     ///< a path forgets idle connections for a while
  bool hush = false;     ///< a connection or a path says nothing for a while, and loses nothing
  bool pause = false;
  bool kill_client = false;
  bool restart = false;
  bool strangers = false;  ///< somebody says hello to the server and nothing more
  bool stale = false;      ///< a connection carries a request again whose key is over
  bool unread = false;     ///< a connection is over behind a request that has arrived
  unsigned replace = 0;    ///< per mille of the restarts: an export is another disk afterwards
  unsigned no_memory = 0;  ///< per mille of the sessions get no chunk memory
};

/// Whether clients are judged by what they make of paths that lose large messages, or forget idle
/// connections (FaultKnobs::large, idle), over transports that do not give up by themselves.
inline constexpr bool kLargeLoss = true;

/// The paths of a client come in by these in turn.
inline constexpr unsigned kListeners = 2;

/// The server's dialect on the wire.
enum class ServerStyle : std::uint8_t { own, linux_static_keys, linux_new_keys };

/// The identity that a server tells.
enum class Identity : std::uint8_t {
  none,         ///< it does not, as Linux's
  per_process,  ///< another one after each start: it has nowhere to keep it
  kept,
};

struct Knobs {
  ServerStyle server_style = ServerStyle::own;
  Identity identity = Identity::none;
  bool clone = false;          ///< the other server has the identity of the server
  bool clone_answers = false;  ///< it makes sessions of clients that must know better
  Duration clone_copied{};     ///< when its record of writers was copied; until then it has none
  bool knows_all_writers = false;  ///< the server knows of a disk that it has had no writer
  bool proofs = false;             ///< the server takes proofs, from clients that offer them
  bool new_keys = false;           ///< of our own server: chunks have new keys with each reply
  bool search_path = false;        ///< disks are files that clients name, instead of exports
  std::uint16_t queue_depth = 1;
  std::uint32_t max_io_size = 4096;
  bool server_extensions = true;
  bool access_notices = true;  ///< the server tells when it thinks otherwise of a path
  bool races = false;          ///< the server answers late copies
  Duration access_mean{};      ///< how often that happens; zero is never
  Duration open_timeout{};     ///< until the server refuses an OPEN that hangs; 0 = it does not
  unsigned max_sessions = 16;
  unsigned max_half_open = 64;
  unsigned memory_paths = 0;  ///< the server has memory for so many; 0 = for all
  /// Large requests for which a path has memory of its own, and borrows for more; 0 = it has all.
  unsigned floor_requests = 0;
  std::uint64_t spare_memory = 0;  ///< bytes, beyond that of the paths
  Duration heartbeat_interval{};
  unsigned heartbeat_misses = 1;
  Duration connect_timeout{};
  Duration handshake_timeout{};
  NetworkKnobs network;
  StorageKnobs storage;
  FaultKnobs faults;
  std::vector<ClientKnobs> clients;
  std::vector<DiskKnobs> disks;
  bool hot_spot = false;    ///< everybody wants the same few blocks
  unsigned operations = 0;  ///< to be started while faults are allowed, by all clients together
  Duration safety_time{};   ///< the same phase ends after this at the latest
  unsigned final_operations = 0;  ///< each client must get so many through afterwards

  /// Obstacles may be met, and nobody is judged by what they do.
  bool excuses_obstacles() const;
  /// The longest time of an operation that does not hang, with another one that it has to wait for,
  /// and the transfer of their data.
  Duration longest_storage() const;
  /// Of the data of all requests that a client may have under way, twice.
  Duration longest_transfer() const;
  /// A path's own memory for data, if it borrows the rest.
  std::uint64_t own_memory() const { return std::uint64_t{floor_requests} * max_io_size; }
  /// Until a silent peer counts as dead, at the latest.
  Duration heartbeat_limit() const;
};

/// `long_run`: with many more operations.
Knobs draw_knobs(Rng& rng, bool long_run);

}  // namespace sim
