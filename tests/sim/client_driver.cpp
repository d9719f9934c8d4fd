#include "tests/sim/client_driver.hpp"

#include <cerrno>
#include <utility>

namespace sim {
namespace {

using rtrs::ClientPathState;

rtrs::wire::Uuid draw_uuid(Rng& rng) {
  rtrs::wire::Uuid uuid;
  for (auto& byte : uuid) byte = static_cast<std::uint8_t>(rng.next());
  return uuid;
}

rtrs::ClientPathOptions path_options(const ClientDriver::Setup& setup, Rng& rng) {
  rtrs::ClientPathOptions options;
  options.session_name = setup.session_name;
  options.session_uuid = draw_uuid(rng);
  options.path_uuid = draw_uuid(rng);
  options.io_connections = setup.client.lanes;
  options.features = setup.client.extensions ? rtrs::wire::kFeatureUserMessages : 0U;
  options.heartbeat_interval = setup.knobs.heartbeat_interval;
  options.heartbeat_misses = setup.knobs.heartbeat_misses;
  options.data_rides_with_reply =
      !setup.client.linux_like && setup.knobs.server_style == ServerStyle::own;
  return options;
}

}  // namespace

ClientDriver::ClientDriver(World& world, Network& network, const Setup& setup)
    : world_{world},
      network_{network},
      setup_{setup},
      serial_{network.new_session(setup.node)},
      scope_{world, setup.node},
      keys_{world, /*shared=*/false},
      path_{path_options(setup, world.rng())},
      links_(path_.connection_count()) {}

// ---- Connecting ---------------------------------------------------------------------------------

void ClientDriver::start() {
  world_.note("client", serial_, "connects");
  scope_.after(setup_.knobs.connect_timeout, [this] {
    if (!up_) fail("timed out while connecting");
  });
  connect_next();
}

void ClientDriver::connect_next() {
  std::uint16_t cid = 0;
  while (cid < links_.size() && links_[cid].queue_pair) ++cid;
  if (cid == links_.size()) return path_.start_exchange(*links_[0].queue_pair);
  Link& link = links_[cid];
  link.wire = network_.open(serial_, cid);
  link.queue_pair = std::make_unique<SimQueuePair>(
      link.wire, Side::client, keys_,
      SimQueuePair::Options{.node = setup_.node, .linux_like = setup_.client.linux_like});
  link.queue_pair->on_ready = [this, cid] { schedule_progress(cid); };
  link.queue_pair->on_record = [this, cid](rtrs::ConstBytes record) { answered(cid, record); };
  link.queue_pair->send_record(rtrs::wire::bytes_of(path_.connect_request(cid)));
}

void ClientDriver::answered(std::uint16_t cid, rtrs::ConstBytes record) {
  if (failing_) return;
  if (rtrs::Complaint complaint = path_.on_answer(cid, record)) {
    if (path_.refusal() == 0) world_.violate(who() + " complains: " + complaint);
    return fail("refused");
  }
  connect_next();
}

// ---- Driving ------------------------------------------------------------------------------------

void ClientDriver::schedule_progress(std::size_t cid) {
  Link& link = links_[cid];
  // Without somebody who waits, only the next tick looks at a lane.
  if (up_ && cid != 0 && link.waiters == 0 && setup_.client.lazy) return;
  if (std::exchange(link.progress_due, true)) return;
  const NetworkKnobs& knobs = setup_.knobs.network;
  const Duration delay =
      world_.rng().delay(0us, knobs.poll_max) * (world_.rng().chance(knobs.slow_poll) ? 100 : 1);
  scope_.after(delay, [this, cid] {
    links_[cid].progress_due = false;
    if (!closed_) progress(cid);
  });
}

void ClientDriver::progress(std::size_t cid) {
  Link& link = links_[cid];
  rtrs::QueuePairHandler* handler = &path_;
  if (cid != 0 && cid < lanes_.size()) handler = lanes_[cid].get();
  unsigned heard = 0;
  const auto status = link.queue_pair->progress(*handler, heard);
  if (world_.broken()) return;
  if (path_.state() == ClientPathState::connected && !up_ && !failing_) go_up();
  if (heard > 0 && watch_) watch_->heard();
  link.queue_pair->flush();
  if (status == SimQueuePair::Status::ended) {
    if (rtrs::Complaint complaint = link.queue_pair->complaint()) {
      world_.violate(who() + " complains: " + complaint);
    }
    return fail("a connection ended");
  }
  if (status == SimQueuePair::Status::more) schedule_progress(cid);
}

void ClientDriver::start(rtrs::Operation& operation, LaneIndex i) {
  ++links_[i].waiters;
  operation.start(*lanes_[i]);  // may be destroyed already when this returns
  lanes_[i]->flush();
  if (links_[i].queue_pair->has_arrivals()) schedule_progress(i);
}

void ClientDriver::cancel(rtrs::Operation& operation, LaneIndex i) {
  links_[i].queue_pair->set_giving_up(true);
  operation.cancel(*lanes_[i]);
  links_[i].queue_pair->set_giving_up(false);
  end_wait(i);
}

void ClientDriver::go_up() {
  const auto slots = path_.slots_per_lane();
  std::uint16_t first = 0;
  for (std::uint16_t cid = 0; cid < slots.size(); ++cid) {
    if (cid != 0 && slots[cid] == 0) break;
    lanes_.push_back(std::make_unique<rtrs::ClientLane>(first, slots[cid]));
    if (cid == 0) path_.set_control_lane(lanes_[0].get());
    path_.attach(*lanes_[cid], cid, *links_[cid].queue_pair);
    first = static_cast<std::uint16_t>(first + slots[cid]);
  }
  seen_.resize(lanes_.size());
  up_ = true;
  world_.note("client", serial_, "is up", path_.accepted().queue_depth, lanes_.size());
  path_.start_heartbeat(world_.now());
  watch_.emplace(world_, setup_.knobs, who(), setup_.node, setup_.server);
  schedule_tick();
  if (on_up) on_up();
}

void ClientDriver::schedule_tick() {
  const Duration late = world_.rng().delay(0us, setup_.knobs.heartbeat_interval / 20);
  scope_.after(path_.next_deadline() - world_.now() + late, [this] {
    if (!failing_) tick();
  });
}

void ClientDriver::tick() {
  bool traffic = false;
  for (std::size_t i = 1; i < lanes_.size(); ++i) {
    if (links_[i].queue_pair->has_arrivals()) progress(i);
    traffic |= std::exchange(seen_[i], lanes_[i]->received()) != lanes_[i]->received();
  }
  if (world_.broken() || failing_) return;
  if (path_.on_tick(world_.now(), traffic) == rtrs::Heartbeat::Verdict::dead) {
    watch_->dead(silenced());
    return fail("the server is silent");
  }
  schedule_tick();
}

bool ClientDriver::silenced() const {
  for (const Link& link : links_) {
    if (link.wire && link.wire->silenced()) return true;
  }
  return false;
}

// ---- The end ------------------------------------------------------------------------------------

/// As with threads: it takes a moment until the session closes, and requests may come meanwhile.
void ClientDriver::fail(const char* why) {
  if (std::exchange(failing_, true)) return;
  world_.note("client", serial_, why);
  watch_.reset();
  scope_.after(world_.rng().delay(0us, 100us), [this] { close(); });
}

void ClientDriver::close() {
  closed_ = true;
  path_.close();
  for (Link& link : links_) {
    if (link.queue_pair) link.queue_pair->close();
  }
  for (auto& lane : lanes_) lane->detach(EIO);
  if (on_down) on_down();
}

rtrs::SessionLimits ClientDriver::limits() const {
  const auto& accepted = path_.accepted();
  return {accepted.max_io_size, accepted.queue_depth, accepted.extension.features};
}

unsigned ClientDriver::permits_in_use() const {
  unsigned used = 0;
  for (const auto& lane : lanes_) used += lane->permits_in_use();
  return used;
}

}  // namespace sim
