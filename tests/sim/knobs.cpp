// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/knobs.hpp"

#include <algorithm>

namespace sim {
namespace {

NetworkKnobs draw_network(Rng& rng, Duration heartbeat_interval) {
  NetworkKnobs network;
  network.stream = rng.chance(500);
  network.window = rng.pick({2U, 4U, 16U, 64U});
  network.latency_min = rng.pick<Duration>({1us, 5us, 50us});
  network.latency_max = network.latency_min + rng.pick<Duration>({0us, 10us, 200us, 3ms});
  network.eager = rng.pick({0U, 500U, 1000U});
  network.departure_max = rng.pick<Duration>({5us, 100us, 2ms});
  network.poll_max = rng.pick<Duration>({1us, 20us});
  network.slow_poll = rng.pick({0U, 0U, 20U});
  network.transport_timeout = rng.pick<Duration>({1s, heartbeat_interval * 3});
  return network;
}

StorageKnobs draw_storage(Rng& rng, bool faults) {
  StorageKnobs storage;
  storage.at_once = rng.pick({0U, 300U, 1000U});
  storage.delay_max = rng.pick<Duration>({10us, 200us, 1ms});
  storage.slow = rng.pick({0U, 50U, 300U});
  if (faults) {
    storage.stall = rng.pick({0U, 0U, 10U, 50U});
    storage.stall_max = rng.pick<Duration>({100ms, 5s});
    storage.fail = rng.pick({0U, 0U, 20U, 200U});
    storage.break_queue = rng.pick({0U, 0U, 0U, 10U});
    storage.hang = rng.pick({0U, 0U, 0U, 5U});
  }
  return storage;
}

DiskKnobs draw_disk(Rng& rng) {
  DiskKnobs disk;
  disk.block = rng.pick({512U, 512U, 512U, 4096U});
  disk.size = rng.pick({16ULL, 64ULL, 200ULL}) * 512 + rng.below(16) * 512;
  // A size that ends inside a sector; a sector's value needs eight bytes.
  if (rng.chance(400)) disk.size += rng.between(8, 511);
  disk.discard_granularity = rng.pick({0U, 512U, 4096U, 3072U});
  disk.backend_read_only = rng.chance(50);
  disk.export_read_only = rng.chance(50);
  disk.can_discard = rng.chance(700);
  disk.can_write_zeroes = rng.chance(700);
  disk.can_fast_zero = rng.chance(500);
  disk.can_fua = rng.chance(500);
  disk.volatile_cache = rng.chance(700);
  disk.can_flush = rng.chance(900);
  return disk;
}

ClientKnobs draw_client(Rng& rng, bool faults) {
  ClientKnobs client;
  client.lanes = static_cast<std::uint16_t>(rng.between(1, 4));
  client.linux_like = rng.chance(250);
  client.extensions = !client.linux_like && rng.chance(800);
  client.survives = rng.chance(650);
  client.exactly_once = client.survives && client.extensions && rng.chance(900);
  client.renews = client.survives && rng.chance(850);
  client.paths = client.survives ? static_cast<unsigned>(rng.between(1, 3)) : 1;
  client.policy = rng.pick({rtrs::PathPolicy::round_robin, rtrs::PathPolicy::min_inflight,
                            rtrs::PathPolicy::min_latency});
  client.ranked = rng.chance(300);
  client.no_path_timeout = rng.pick<Duration>({0ms, 5ms, 20ms, 1s, 10s});
  client.reconnect_min = rng.pick<Duration>({1ms, 1ms, 20ms});
  client.reconnect_max = client.reconnect_min * rng.pick({1, 50});
  client.settle_time = rng.pick<Duration>({0ms, 10ms, 2s});
  client.same_name = rng.chance(300);
  client.lazy = rng.chance(500);
  client.change_paths = client.survives ? rng.pick({0U, 20U, 100U}) : 0U;
  client.concurrency = rng.pick({1U, 2U, 4U, 16U});
  client.think_max = rng.pick<Duration>({20us, 200us, 2ms});
  if (faults) {
    client.cancel = rng.pick({0U, 20U, 100U});
    client.close = rng.pick({0U, 20U, 50U, 200U});
    client.disconnect = rng.pick({0U, 0U, 5U});
  } else {
    client.close = rng.pick({0U, 20U});
  }
  client.access_notices = client.extensions && rng.chance(900);
  client.claims = client.extensions && rng.chance(700);
  return client;
}

/// A Linux client's way to fail over, with what it does not know of.
void become_linux(ClientKnobs& client, Rng& rng) {
  client.linux_like = client.resends_at_once = true;
  client.survives = client.renews = client.exactly_once = true;
  client.extensions = client.access_notices = client.claims = false;
  client.paths = static_cast<unsigned>(rng.between(1, 3));
  client.no_path_timeout = 0ms;
  client.cancel = 0;
}

FaultKnobs draw_faults(Rng& rng) {
  FaultKnobs faults;
  faults.mean = rng.pick<Duration>({3ms, 20ms, 100ms, 500ms});
  faults.cut = rng.chance(400);
  faults.late = rng.chance(300);
  faults.silence = rng.chance(300);
  faults.stall = rng.chance(400);
  faults.pause = rng.chance(300);
  faults.kill_client = rng.chance(250);
  faults.restart = rng.chance(350);
  faults.no_memory = rng.pick({0U, 0U, 0U, 100U});
  return faults;
}

/// A client that cannot tell one disk from another must not be given another one.
bool may_replace(const Knobs& knobs) {
  if (!knobs.server_extensions) return false;
  for (const ClientKnobs& client : knobs.clients) {
    if (!client.extensions) return false;
  }
  for (const DiskKnobs& disk : knobs.disks) {
    if (disk.uuid == DiskKnobs{}.uuid) return false;
  }
  return true;
}

/// Chance of its own, so that all else is as it is without.
void draw_unread(Knobs& knobs, Rng rng, bool faults) {
  const bool fails_over = std::ranges::any_of(knobs.clients, [](const ClientKnobs& client) {
    return client.resends_at_once && client.paths > 1;
  });
  if (!faults || !fails_over || !rng.chance(300)) return;
  knobs.faults.unread = true;
  knobs.network.late_read = 200;
  knobs.network.late_read_max = knobs.heartbeat_interval / 4;
}

/// Chance of its own, so that all else is as it is without.
void draw_strangers(Knobs& knobs, Rng rng, bool faults) {
  if (!faults || knobs.server_style != ServerStyle::own || !rng.chance(150)) return;
  knobs.faults.strangers = true;
  knobs.max_half_open = rng.pick({2U, 8U, 64U});
}

/// Each client has memory for one path, or nearly so. Without generations a change may have to wait
/// for a path of its own. Chance of its own, so that all else is as it is without.
void draw_memory(Knobs& knobs, Rng rng) {
  const auto one_is_enough = [](const ClientKnobs& client) {
    return client.exactly_once && !client.linux_like;
  };
  if (knobs.max_sessions == 1 || !knobs.server_extensions || !rng.chance(250)) return;
  if (std::ranges::all_of(knobs.clients, one_is_enough))
    knobs.memory_paths = static_cast<unsigned>(knobs.clients.size() + rng.below(2));
}

/// Requests find too little memory, and wait for each other. Chance of its own, so that all else is
/// as it is without.
void draw_loans(Knobs& knobs, Rng rng) {
  const bool lends =
      knobs.server_style == ServerStyle::own && knobs.server_extensions && knobs.network.stream;
  const bool all_borrow = std::ranges::all_of(knobs.clients, [](const ClientKnobs& client) {
    return client.exactly_once && !client.resends_at_once;
  });
  if (!lends || !rng.chance(all_borrow ? 600 : 100)) return;
  knobs.queue_depth = std::max(knobs.queue_depth, rng.pick({std::uint16_t{5}, std::uint16_t{16}}));
  knobs.floor_requests = rng.pick({1U, 1U, 2U});
  // Two pages of each chunk are always there. A slow network has its largest message already.
  const std::uint32_t large = rng.pick({16384U, 32768U});
  const bool slow = knobs.network.rate != 0;
  if (!slow) knobs.max_io_size = std::max(knobs.max_io_size, large);
  knobs.spare_memory = rng.below(8) * 4096;
  if (!rng.chance(700)) return;
  knobs.hot_spot = false;
  knobs.storage.at_once = 0;
  knobs.storage.delay_max = std::max<Duration>(knobs.storage.delay_max, 2ms);
  for (DiskKnobs& disk : knobs.disks) disk.size = std::max<std::uint64_t>(disk.size, 400 * 512);
  for (ClientKnobs& client : knobs.clients) {
    if (!slow) client.concurrency = 16;
    client.think_max = std::min<Duration>(client.think_max, 200us);
  }
}

/// Only verbs have keys. Chance of its own, so that all else is as it is without.
void draw_new_keys(Knobs& knobs, Rng rng, bool faults) {
  if (knobs.server_style != ServerStyle::own || knobs.network.stream) return;
  bool resends = false;
  for (const ClientKnobs& client : knobs.clients) resends = resends || client.resends_at_once;
  knobs.new_keys = rng.chance(resends ? 600 : 400);
  knobs.faults.stale = knobs.new_keys && faults && rng.chance(500);
}

/// Likewise. Only our own server does something for an OPEN that may hang.
void draw_hanging_opens(Knobs& knobs, Rng rng, bool faults) {
  if (!faults || knobs.server_style != ServerStyle::own || !rng.chance(400)) return;
  knobs.storage.hang_open = rng.pick({50U, 200U, 500U});
  knobs.open_timeout = rng.pick<Duration>({2ms, 20ms, 200ms});
}

/// Only peers with the extension can tell a dead connection from those beside it.
bool may_be_patient(const Knobs& knobs) {
  return knobs.network.stream && knobs.server_extensions &&
         std::ranges::all_of(knobs.clients, [](const ClientKnobs& client) {
           return client.exactly_once && !client.resends_at_once;
         });
}

/// Likewise. A middle box, or a peer that hangs, may acknowledge for ever what it does not deliver.
void draw_patient_transport(Knobs& knobs, Rng rng, bool faults) {
  if (!may_be_patient(knobs) || !rng.chance(500)) return;
  knobs.network.transport_timeout = 24h;
  if (!faults || !rng.chance(500)) return;
  // Heartbeats that are missed while there is I/O all the time.
  knobs.faults.mute = true;
  knobs.heartbeat_interval = 60ms;
  knobs.heartbeat_misses = 1;
  knobs.network.late_read_max = knobs.heartbeat_interval / 4;
  knobs.operations = 200;
  for (ClientKnobs& client : knobs.clients) client.think_max = 2ms;
}

/// Our own peers over TCP, who have to notice everything themselves.
void become_own(Knobs& knobs, Rng& rng) {
  knobs.server_style = ServerStyle::own;
  knobs.server_extensions = knobs.network.stream = true;
  knobs.new_keys = knobs.faults.stale = false;
  knobs.network.transport_timeout = 24h;
  for (ClientKnobs& client : knobs.clients) {
    client.linux_like = client.resends_at_once = false;
    client.extensions = client.survives = client.exactly_once = true;
    client.paths = static_cast<unsigned>(rng.between(1, 3));
    client.no_path_timeout = rng.pick<Duration>({0ms, 5ms, 1s, 5s});
  }
}

/// Likewise, and these take seconds to be noticed and to go. In some seeds nothing else goes wrong.
void draw_obstacles(Knobs& knobs, Rng rng, bool faults) {
  if (!faults || knobs.faults.mute || !rng.chance(80)) return;
  if (rng.chance(600)) knobs.faults = {};
  knobs.faults.large = rng.chance(800);
  knobs.faults.idle = !knobs.faults.large || rng.chance(300);
  knobs.max_io_size = rng.pick({8192U, 16384U});
  knobs.heartbeat_interval = rng.pick<Duration>({60ms, 60ms, 200ms});
  knobs.network.late_read_max = std::min(knobs.network.late_read_max, knobs.heartbeat_interval / 4);
  knobs.storage.hang = knobs.storage.hang_open = 0;
  knobs.open_timeout = 0ms;
  knobs.storage.stall_max = 100ms;
  if (rng.chance(700)) become_own(knobs, rng);
  for (ClientKnobs& client : knobs.clients)
    client.think_max = rng.pick<Duration>({10ms, 100ms, 400ms});
  knobs.operations = 200;
  knobs.safety_time = rng.pick<Duration>({20s, 60s});
}

/// Likewise. Another server has exports of the same names, and some paths lead there by mistake. It
/// may be a clone of the server.
void draw_foreign(Knobs& knobs, Rng rng) {
  if (knobs.server_style == ServerStyle::own) {
    knobs.identity = rng.pick({Identity::none, Identity::per_process, Identity::kept});
  }
  const bool mistaken = rng.chance(300);
  for (ClientKnobs& client : knobs.clients) {
    const bool kept = knobs.identity == Identity::kept && !client.linux_like;
    client.knows_server = kept && rng.chance(500);
    if (!mistaken || !client.survives) continue;
    client.foreign = rng.pick({300U, 700U});
    client.paths = std::max(client.paths, 2U);
  }
  knobs.clone = mistaken && knobs.identity == Identity::kept && rng.chance(600);
}

/// Likewise. A clone with an older record of writers, where clients look when the server is away.
void draw_records(Knobs& knobs, Rng rng) {
  if (!knobs.server_extensions) return;
  knobs.knows_all_writers = rng.chance(500);
  knobs.clone_answers = knobs.clone && rng.chance(750);
  knobs.clone_copied = rng.pick<Duration>({0ms, 1ms, 10ms, 100ms, 1s});
  if (!knobs.clone_answers) return;
  knobs.faults.restart = true;
  for (std::size_t i = 0; i < knobs.disks.size(); ++i) {
    knobs.disks[i].uuid[0] = static_cast<std::uint8_t>(i + 1);
  }
}

/// Likewise. Linux's clients come by another listener.
void draw_proofs(Knobs& knobs, Rng rng) {
  knobs.proofs = knobs.server_extensions && rng.chance(400);
  if (!knobs.proofs) return;
  for (ClientKnobs& client : knobs.clients) {
    client.proves = client.extensions && rng.chance(850);
    if (client.proves && rng.chance(300)) client.impostor = rng.pick({50U, 300U});
  }
}

/// Likewise. Several users of one device look at it at different times, and another client changes
/// it in between.
void draw_sharing(Knobs& knobs, Rng rng) {
  if (!knobs.server_extensions || knobs.clients.size() < 2 || !rng.chance(100)) return;
  knobs.disks.resize(1);
  knobs.disks[0].backend_read_only = knobs.disks[0].export_read_only = false;
  for (ClientKnobs& client : knobs.clients) {
    client.claims = client.extensions;
    client.join = rng.pick({200U, 500U});
    client.close = std::max(client.close, 50U);
  }
}

/// Connections that take long for a message, some of them longer than a silence may last.
void draw_rates(Knobs& knobs, Rng& rng) {
  knobs.max_io_size = rng.pick({16384U, 65536U});
  const std::uint64_t each_second = rng.pick({2ULL, 4ULL, 40ULL});  // whole messages
  // Elsewhere nobody sees bytes move, and networks are fast.
  knobs.network.rate = knobs.max_io_size * (knobs.network.stream ? each_second : 40);
  for (ClientKnobs& client : knobs.clients) {
    client.concurrency = std::min(client.concurrency, 2U);
    if (rng.chance(500)) client.no_path_timeout = 20ms;  // less than a message takes
  }
}

/// Requests that a server holds for longer than requests may wait for a path.
void draw_patience(Knobs& knobs, Rng& rng) {
  knobs.storage.stall = 200;
  knobs.storage.stall_max = 6s;
  for (ClientKnobs& client : knobs.clients) client.no_path_timeout = rng.pick<Duration>({20ms, 1s});
}

/// Likewise. Clients with several paths at our own server, where nothing else goes wrong in most
/// seeds: paths die later than their silence can be found, and storage is often slower than that.
void draw_silences(Knobs& knobs, Rng& rng) {
  if (rng.chance(700)) knobs.faults = {};
  knobs.faults.hush = true;
  knobs.faults.mean = rng.pick<Duration>({100ms, 500ms, 2s});
  knobs.faults.pause = knobs.faults.pause || rng.chance(200);
  knobs.server_style = ServerStyle::own;
  knobs.server_extensions = true;
  knobs.memory_paths = 0;
  knobs.heartbeat_interval = rng.pick<Duration>({200ms, 500ms});
  knobs.heartbeat_misses = static_cast<unsigned>(rng.between(2, 5));
  knobs.network.late_read = 0;
  knobs.storage.hang = knobs.storage.hang_open = 0;
  knobs.storage.stall = rng.pick({0U, 20U, 100U});
  knobs.storage.stall_max = rng.pick<Duration>({100ms, 500ms});
  knobs.open_timeout = 0ms;
  knobs.operations = 200;
  knobs.safety_time = rng.pick<Duration>({5s, 20s});
  for (ClientKnobs& client : knobs.clients) {
    client.linux_like = client.resends_at_once = false;
    client.extensions = client.survives = client.exactly_once = true;
    client.paths = static_cast<unsigned>(rng.between(2, 3));
    client.no_path_timeout = rng.pick<Duration>({0ms, 1s, 10s});
    client.think_max = rng.pick<Duration>({2ms, 50ms});
  }
  if (rng.chance(300)) draw_rates(knobs, rng);
  if (rng.chance(200)) draw_patience(knobs, rng);
}

/// Likewise.
void draw_races(Knobs& knobs, Rng rng, bool faults) {
  knobs.network.overtakes = knobs.network.stream && Rng{rng}.chance(300);
  const bool others = knobs.faults.mute || knobs.faults.large || knobs.faults.idle;
  if (faults && !others && rng.chance(120)) draw_silences(knobs, rng);
  knobs.races = knobs.server_extensions && rng.chance(850);
  for (ClientKnobs& client : knobs.clients) {
    client.races = client.exactly_once && !client.resends_at_once && rng.chance(850);
  }
}

}  // namespace

Duration Knobs::longest_storage() const {
  constexpr int kPieces = 3;  // of each of the two
  const Duration slow = storage.delay_max * (storage.slow > 0 ? 100 : 1);
  const Duration stall = storage.stall > 0 ? storage.stall_max : Duration::zero();
  return 2 * kPieces * std::max(slow, stall) + longest_transfer();
}

Duration Knobs::longest_transfer() const {
  if (network.rate == 0) return Duration::zero();
  std::uint64_t most = 0;
  for (const ClientKnobs& client : clients) {
    for (const DiskKnobs& disk : disks) most = std::max(most, client.concurrency * disk.size);
  }
  return std::chrono::microseconds{2 * most * 1'000'000 / network.rate};
}

bool Knobs::excuses_obstacles() const {
  const bool judged = kLargeLoss && network.transport_timeout >= 1h;
  return (faults.large || faults.idle) && !judged;
}

Duration Knobs::heartbeat_limit() const {
  // A tick comes up to a twentieth of the interval late (HeartbeatTimer).
  return (heartbeat_interval + heartbeat_interval / 20) * (heartbeat_misses + 2) + 1ms;
}

Knobs draw_knobs(Rng& rng, bool long_run) {
  Knobs knobs;
  const bool faults = rng.chance(850);
  knobs.queue_depth = static_cast<std::uint16_t>(rng.pick({1, 2, 3, 5, 8, 16, 40}));
  knobs.max_io_size = rng.pick({512U, 1024U, 4096U, 8192U, 16384U});
  knobs.server_style = rng.pick({ServerStyle::own, ServerStyle::own, ServerStyle::own,
                                 ServerStyle::linux_static_keys, ServerStyle::linux_new_keys});
  knobs.server_extensions = knobs.server_style == ServerStyle::own && rng.chance(850);
  knobs.search_path = rng.chance(250);
  knobs.heartbeat_interval = rng.pick<Duration>({60ms, 200ms, 500ms});
  knobs.heartbeat_misses = static_cast<unsigned>(rng.between(1, 5));
  knobs.connect_timeout = rng.pick<Duration>({1s, 10s});
  knobs.handshake_timeout = rng.pick<Duration>({1s, 10s});
  knobs.network = draw_network(rng, knobs.heartbeat_interval);
  knobs.storage = draw_storage(rng, faults);
  if (faults) knobs.faults = draw_faults(rng);
  const std::uint64_t clients = rng.between(1, 3);
  for (std::uint64_t i = 0; i < clients; ++i) {
    knobs.clients.push_back(draw_client(rng, faults));
    // A late CLOSE at Linux's server closes a device that was opened meanwhile.
    if (faults && knobs.server_style != ServerStyle::own) {
      ClientKnobs& client = knobs.clients.back();
      client.close = std::max(client.close, 100U);
      if (client.survives) client.paths = std::max(client.paths, 2U);
      knobs.faults.late = true;
    }
    const bool becomes = rng.chance(150) && knobs.server_style == ServerStyle::own;
    if (becomes) become_linux(knobs.clients.back(), rng);
  }
  const std::uint64_t disks = rng.between(1, 3);
  for (std::uint64_t i = 0; i < disks; ++i) {
    DiskKnobs disk = draw_disk(rng);
    if (disk.block > knobs.max_io_size) disk.block = 512;
    if (knobs.search_path) disk.export_read_only = false;
    if (rng.chance(700)) disk.uuid[0] = static_cast<std::uint8_t>(i + 1);
    knobs.disks.push_back(disk);
  }
  if (may_replace(knobs)) knobs.faults.replace = rng.pick({0U, 300U});
  knobs.max_sessions = rng.chance(200) ? 1U : 16U;
  knobs.hot_spot = rng.chance(300);
  knobs.operations = rng.pick({30U, 80U, 200U});
  knobs.safety_time = rng.pick<Duration>({1s, 10s});
  if (long_run) {
    knobs.operations *= 25;
    knobs.safety_time *= 60;
  }
  knobs.final_operations = 5;
  knobs.access_notices = knobs.server_extensions && rng.chance(900);
  const bool changes = knobs.server_style == ServerStyle::own && rng.chance(400);
  if (rng.chance(200)) {
    knobs.network.late_read = rng.pick({20U, 200U});
    knobs.network.late_read_max = knobs.heartbeat_interval / 4;
  }
  if (changes) knobs.access_mean = rng.pick<Duration>({500us, 3ms, 20ms});
  draw_new_keys(knobs, Rng{Rng{rng}.next()}, faults);
  draw_hanging_opens(knobs, Rng{~Rng{rng}.next()}, faults);
  draw_patient_transport(knobs, Rng{Rng{rng}.next() + 1}, faults);
  draw_obstacles(knobs, Rng{Rng{rng}.next() + 2}, faults);
  draw_strangers(knobs, Rng{Rng{rng}.next() + 3}, faults);
  draw_foreign(knobs, Rng{Rng{rng}.next() + 4});
  draw_proofs(knobs, Rng{Rng{rng}.next() + 5});
  draw_sharing(knobs, Rng{Rng{rng}.next() + 6});
  draw_unread(knobs, Rng{Rng{rng}.next() + 7}, faults);
  draw_records(knobs, Rng{Rng{rng}.next() + 7});
  draw_memory(knobs, Rng{Rng{rng}.next() + 8});
  draw_races(knobs, Rng{Rng{rng}.next() + 9}, faults);
  draw_loans(knobs, Rng{Rng{rng}.next() + 10});
  return knobs;
}

}  // namespace sim
