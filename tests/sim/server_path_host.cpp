// SPDX-License-Identifier: BSD-3-Clause
#include "tests/sim/server_path_host.hpp"

#include <algorithm>
#include <utility>

#include "tests/sim/proofs.hpp"

namespace sim {

using Event = rtrs::ServerEvent::Kind;
using End = rtrs::PathEnd::Kind;

ServerPathHost::ServerPathHost(PathEnvironment environment, rtrs::ServerMachine& machine,
                               rtrs::ServerMachine::Path& place)
    : environment_{std::move(environment)},
      world_{environment_.world},
      machine_{machine},
      place_{place},
      path_{place.core},
      session_{machine.session()},
      scope_{world_, environment_.server},
      keys_{world_, /*shared=*/true},
      links_(path_.options().cid_count) {
  place_.executor = this;
  const ServerStyle style = environment_.knobs.server_style;
  if (style != ServerStyle::own) {
    linux_server_.emplace(world_, session_.options().queue_depth, session_.options().chunk_size(),
                          style == ServerStyle::linux_new_keys);
  }
  if (path_.options().new_keys) chunk_keys_.emplace(world_, environment_.open_chunks);
}

void ServerPathHost::report(Event kind, rtrs::PathEnd end) const {
  environment_.report({.kind = kind, .path = place_.id, .end = std::move(end)});
}

bool ServerPathHost::provide_chunks() {
  refused_ = !environment_.have_memory();
  if (refused_) return false;
  auto& chunks = environment_.shared_chunks != nullptr ? *environment_.shared_chunks : chunks_;
  chunks.resize(session_.options().chunk_memory());
  path_.set_chunks(chunks);
  return true;
}

/// A reader that still looks there gets bytes that nobody has written.
void ServerPathHost::give_back(std::span<const rtrs::MutableBytes> unused, std::uint64_t held) {
  if (environment_.shared_chunks != nullptr) return;
  for (const rtrs::MutableBytes part : unused) std::ranges::fill(part, std::byte{0xDD});
  environment_.on_shrunk(held);
}

// ---- Memory that is lent ------------------------------------------------------------------------

/// Data that are still there, or under way from there, are lost.
void ServerPathHost::discard(std::span<const rtrs::MutableBytes> parts) {
  for (const rtrs::MutableBytes part : parts) std::ranges::fill(part, std::byte{0xDD});
}

void ServerPathHost::await_memory() {
  world_.note("server", environment_.serial, "waits for memory", path_.starves(0) ? 1U : 0U,
              path_.starving_for());
  if (!std::exchange(shows_life_, true)) show_life_later();
}

void ServerPathHost::show_life_later() {
  scope_.after(path_.sign_interval(), [this] {
    shows_life_ = place_.open() && path_.starves();
    if (!shows_life_) return;
    path_.show_life();
    if (path_.starves(0) && watch_) watch_->heard();  // it does not look for its client there
    show_life_later();
  });
}

/// Called in the midst of what other paths do.
void ServerPathHost::wake() {
  if (std::exchange(woken_, true)) return;
  scope_.after(world_.rng().delay(0us, 200us), [this] {
    woken_ = false;
    go_on();
  });
}

/// A path within its floor does not wait.
void ServerPathHost::go_on() {
  if (!place_.open()) return;
  path_.on_memory();
  if (path_.starves(0) && watch_) watch_->heard();
  const bool starves = place_.open() && path_.starves();
  if (starves && path_.loan_in_use() + path_.starving_for() <= environment_.knobs.own_memory())
    world_.violate(who() + " lets a request wait for which it has memory of its own");
  environment_.check_loans();
  for (std::uint16_t cid = 0; cid < links_.size(); ++cid) {
    Link* const link = links_[cid].get();
    if (place_.open() && link != nullptr && link->starves && !path_.starves(cid)) progress(*link);
  }
}

void ServerPathHost::check_loan() {
  const rtrs::PathLoan& loan = path_.loan();
  if (!place_.open() || !loan.limited() || path_.state() != rtrs::ServerPathState::connected)
    return;
  if (loan.used() > loan.floor() + loan.lent())
    world_.violate(who() + " uses memory that is neither its own nor lent to it");
  const std::uint64_t in_use = path_.loan_in_use();
  const bool owes = loan.lent() > 0 && in_use < loan.floor() + loan.lent();
  const bool busy = std::exchange(requests_, path_.requests()) != path_.requests();
  const bool must = loan.asked() || (path_.unanswered() == 0 && !busy);
  const bool was_asked = std::exchange(was_asked_, loan.asked());
  if (!owes || !must) return owes_since_.reset();
  if (was_asked != loan.asked()) owes_since_.reset();
  if (!owes_since_) owes_since_ = world_.now();
  const Duration patience =
      loan.asked() ? Duration{20ms} : 1s + 4 * environment_.knobs.heartbeat_interval;
  const Instant since = std::max(*owes_since_, world_.awake_since(environment_.server));
  if (world_.now() - since > patience)
    world_.violate(who() + " keeps memory that it has borrowed and does not use");
}

std::optional<std::string_view> ServerPathHost::user() const {
  if (!path_.proofs().needed()) return std::nullopt;
  return path_.proofs().at(0).user().name;
}

bool ServerPathHost::has_impostors() const {
  return std::ranges::any_of(links_,
                             [](const auto& link) { return link && link->wire->is_impostor(); });
}

/// Nothing but the client itself may have got in.
void ServerPathHost::check_users() {
  if (!path_.proofs().needed()) return;
  for (std::uint16_t cid = 0; cid < links_.size(); ++cid) {
    const auto& proof = path_.proofs().at(cid);
    if (proof.proven() && proof.user().name == user_of(environment_.client)) continue;
    world_.violate(who() + " has a connection that did not prove to be its client's");
  }
}

void ServerPathHost::add(const rtrs::wire::ConnectParameters& request, std::shared_ptr<Wire> wire) {
  const std::uint16_t cid = request.cid;
  links_[cid] = std::make_unique<Link>();
  Link& link = *links_[cid];
  link.wire = wire;
  wire->set_session_epoch(session_.options().session_epoch);
  if (chunk_keys_) wire->keep_copies();
  link.queue_pair = std::make_unique<SimQueuePair>(
      std::move(wire), Side::server, keys_,
      SimQueuePair::Options{.node = environment_.server,
                            .linux_server = linux_server_ ? &*linux_server_ : nullptr,
                            .chunk_keys = chunk_keys_ ? &*chunk_keys_ : nullptr});
  link.queue_pair->on_ready = [this, &link] { schedule_progress(link); };
  link.queue_pair->on_post = [this, &link] { schedule_flush(link); };
  link.queue_pair->on_sent = [this] {
    if (place_.open() && path_.minds_memory()) wake();
  };
  link.handler = &path_.add(cid, *link.queue_pair, rtrs::wire::encode(request));
  auto accept = path_.accept_parameters();
  if (linux_server_) accept.new_rkey = linux_server_->new_keys();
  link.queue_pair->send_record(rtrs::wire::bytes_of(rtrs::wire::encode(accept)));
}

void ServerPathHost::schedule_progress(Link& link) {
  if (std::exchange(link.progress_due, true)) return;
  const NetworkKnobs& knobs = environment_.knobs.network;
  Duration delay =
      world_.rng().delay(0us, knobs.poll_max) * (world_.rng().chance(knobs.slow_poll) ? 100 : 1);
  if (world_.rng().chance(knobs.late_read)) {
    delay = world_.rng().delay(0us, knobs.late_read_max);
  }
  scope_.after(delay, [this, &link] {
    link.progress_due = false;
    if (place_.open()) progress(link);
  });
}

/// Linux's server carries out what it has read at once.
bool ServerPathHost::read() {
  if (linux_server_) return true;
  return std::ranges::all_of(links_, [this](auto& link) {
    return !link || !place_.open() || world_.broken() || progress(*link);
  });
}

/// False: there may be more to read.
bool ServerPathHost::progress(Link& link) {
  if (machine_.draining()) return true;
  unsigned heard = 0;
  machine_.begin_reading(place_);
  const auto status = link.queue_pair->progress(*link.handler, heard);
  const bool open = machine_.end_reading(place_, status == SimQueuePair::Status::more);
  environment_.check_loans();
  link.starves = status == SimQueuePair::Status::starves;
  if (world_.broken() || !open) return true;
  if (heard > 0 && watch_) watch_->heard();
  switch (status) {
    case SimQueuePair::Status::drained:
    case SimQueuePair::Status::starves:
      return true;
    case SimQueuePair::Status::more:
      schedule_progress(link);
      return false;
    default:
      report(
          Event::ended,
          {.kind = End::broken, .why = link.queue_pair->complaint(), .text = "a connection ended"});
      return true;
  }
}

void ServerPathHost::serves() {
  world_.note("server", environment_.serial, "path is up");
  check_users();
  report(Event::serving);
  watch_.emplace(world_, environment_.knobs, who(), environment_.server, environment_.client);
}

/// Neither end ever breaks a rule, unless it is refused, or others pretend to be a client.
void ServerPathHost::check_complaint(const rtrs::PathEnd& end) {
  const bool complains =
      end.kind == End::broke_rule || end.kind == End::broken || end.kind == End::unproven;
  if (!complains || end.why == nullptr || refused_) return;
  // A stranger's hello may come between the connections of a path.
  const bool pretended =
      environment_.knobs.faults.strangers || (path_.proofs().needed() && has_impostors());
  if (pretended && path_.state() == rtrs::ServerPathState::connecting) return;
  world_.violate(who() + " complains: " + end.why);
}

void ServerPathHost::schedule_flush(Link& link) {
  if (std::exchange(link.flush_due, true)) return;
  scope_.soon([this, &link] {
    link.flush_due = false;
    if (!place_.open()) return;
    link.queue_pair->flush();
    if (machine_.draining()) send_rest();
  });
}

bool ServerPathHost::silenced() const {
  for (const auto& link : links_) {
    if (link && link->wire->disturbed()) return true;
  }
  return false;
}

void ServerPathHost::send_rest() {
  if (!place_.open()) return;
  for (const auto& link : links_) {
    if (link && !link->queue_pair->idle()) {
      // Try again when more has been sent.
      return scope_.after(100us, [this] { send_rest(); });
    }
  }
  report(Event::flushed);
}

void ServerPathHost::leaves(const rtrs::PathEnd& end, bool over) {
  check_complaint(end);
  if (end.kind == End::silent && watch_) watch_->dead(silenced());
  world_.note("server", environment_.serial, end.why != nullptr ? end.why : "path ends",
              static_cast<std::uint64_t>(end.kind));
  watch_.reset();
  environment_.on_closing(over);
}

void ServerPathHost::close() {
  for (auto& link : links_) {
    if (link) link->queue_pair->close();
  }
  if (chunk_keys_) chunk_keys_->end_all();
  report(Event::released);
}

}  // namespace sim
