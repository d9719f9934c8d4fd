// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/nbd/worker.hpp"

#include <sched.h>
#include <sys/epoll.h>

#include <algorithm>
#include <array>
#include <future>
#include <memory>
#include <span>
#include <utility>

namespace rnbd::nbd {
namespace {

/// Until late clients are looked for again.
constexpr std::chrono::milliseconds kMostWait{1000};
/// Turns in a row that may wait for one socket only: a request and its answer are two. The other
/// clients, and posted work, wait for so many at most.
constexpr unsigned kMaxAlone = 16;
/// If yielding the CPU takes this long, an unrelated program wants it. Then the worker does not
/// yield for a while.
constexpr std::chrono::microseconds kLongYield{1000};
constexpr std::chrono::seconds kNoYield{1};
/// So many clients are looked at in each turn anyway.
constexpr std::size_t kFewClients = 16;
/// Turns without anything, after which a client rests. To lay it to rest and to wake it takes two
/// system calls.
constexpr unsigned kQuietTurns = 256;

/// All of both lists.
template <class Function>
bool all_of(std::list<Connection>& one, std::list<Connection>& other, Function function) {
  return std::ranges::all_of(one, function) && std::ranges::all_of(other, function);
}

}  // namespace

Worker::Worker(unsigned index, Pool& pool, rtrs::Log log, const rtrs::MakeOneCall& make_call)
    : index_{index},
      pool_{pool},
      log_{std::move(log)},
      doze_{::epoll_create1(EPOLL_CLOEXEC)},
      make_call_{make_call} {
  thread_ = std::thread{[this] { run(); }};
}

Worker::~Worker() { thread_.join(); }

// ---- From other threads -------------------------------------------------------------------------

void Worker::adopt(int socket, Agreement agreement) {
  ++count_;
  auto shared = std::make_shared<Agreement>(std::move(agreement));
  posted_.post([this, socket, shared] { add(socket, std::move(*shared)); });
}

bool Worker::grow(const Watched* client, std::uint64_t size) {
  const auto done = std::make_shared<std::promise<bool>>();
  posted_.post([this, client, size, done] {
    done->set_value(all_of(connections_, resting_, [&](Connection& connection) {
      return !connection.is_watched_by(client) || connection.grow(size);
    }));
  });
  return done->get_future().get();
}

std::future<std::optional<Released>> Worker::release(const Watched* client) {
  auto promise = std::make_shared<std::promise<std::optional<Released>>>();
  auto future = promise->get_future();
  posted_.post([this, client, promise] {
    const auto is_it = [client](const Connection& connection) {
      return connection.is_watched_by(client);
    };
    const auto rests = std::ranges::find_if(resting_, is_it);
    if (rests != resting_.end()) wake(*rests);
    const auto found = std::ranges::find_if(connections_, is_it);
    if (found == connections_.end()) return promise->set_value(std::nullopt);
    releasing_.insert_or_assign(&*found, std::move(*promise));
    found->prepare_release();
  });
  return future;
}

std::future<Worker::Releases> Worker::release_all() {
  auto promise = std::make_shared<std::promise<Releases>>();
  auto future = promise->get_future();
  posted_.post([this, promise] {
    while (!resting_.empty()) wake(resting_.front());
    Releases releases;
    for (Connection& connection : connections_) {
      if (!connection.can_be_handed_over()) {
        if (!connection.watched()) connection.drain();
        continue;
      }
      releases.push_back(releasing_[&connection].get_future());
      connection.prepare_release();
    }
    promise->set_value(std::move(releases));
  });
  return future;
}

std::future<Worker::Staying> Worker::pause(Others others) {
  auto promise = std::make_shared<std::promise<Staying>>();
  auto future = promise->get_future();
  posted_.post([this, promise, others] {
    while (!resting_.empty()) wake(resting_.front());
    staying_ = {};
    for (Connection& connection : connections_) {
      if (connection.can_be_handed_over())
        connection.pause();
      else if (others == Others::end && !connection.watched())
        connection.drain();
      else if (!connection.watched() && !connection.left())
        ++(connection.encrypted() ? staying_.encrypted
           : connection.ending()  ? staying_.leaving
                                  : staying_.others);
    }
    still_ = std::move(*promise);
  });
  return future;
}

std::future<unsigned> Worker::count_silent() {
  auto promise = std::make_shared<std::promise<unsigned>>();
  auto future = promise->get_future();
  posted_.post([this, promise] {
    promise->set_value(
        static_cast<unsigned>(std::ranges::count_if(connections_, &Connection::pauses_by_client)));
  });
  return future;
}

void Worker::resume() {
  posted_.post([this] {
    still_.reset();
    for (Connection& connection : connections_) {
      if (connection.paused()) connection.resume();
    }
  });
}

void Worker::tell_still() {
  if (!still_ || !std::ranges::all_of(connections_, [](const Connection& connection) {
        return !connection.paused() || connection.still() || connection.left();
      }))
    return;
  still_->set_value(staying_);
  still_.reset();
}

void Worker::stop(std::chrono::milliseconds patience) {
  posted_.post([this, patience] {
    stopping_ = true;
    while (!resting_.empty()) wake(resting_.front());
    deadline_ = std::chrono::steady_clock::now() + patience;
    for (Connection& connection : connections_) connection.drain();
  });
}

void Worker::call(std::function<int()> call, Request& request) {
  pool_.calls.post(
      [call = std::move(call), &request] { request.error = call(); },
      [this, &request] {
        posted_.post([&request] { request.connection->on_call(request, request.error); });
      });
}

// ---- The loop -----------------------------------------------------------------------------------

void Worker::run() {
  if (make_call_) call_ = make_call_();
  while (!stopping_ || !connections_.empty()) {
    if (wait_alone()) {
      ++alone_;
      moved_ = 0;
    } else {
      alone_ = 0;
      flush_lanes();  // what was kept for a wait alone that could not be
      wait();
      serve_sockets();
    }
    flush_lanes();
    serve_lanes();
    if (polled_[0].revents != 0) run_posted();
    send_replies();
    bury();
    tell_still();
  }
}

/// A single client that sends one request at a time is waited for in the receive: for the request,
/// or for its answer.
Worker::Alone Worker::alone() const {
  if (!answered_ && !started_) return Alone::no;
  const bool single = connections_.size() == 1 && resting_.empty() && lanes_.size() == 1;
  if (alone_ >= kMaxAlone || stopping_ || !single || lanes_.front().more) return Alone::no;
  const Connection& client = connections_.front();
  if (answered_ && (client.at_rest() || (call_ && client.owes_one_reply()))) return Alone::request;
  return started_ && client.one_under_way() ? Alone::answer : Alone::no;
}

/// True if what it has waited for has come.
bool Worker::wait_alone() {
  const Alone what = alone();
  answered_ = started_ = false;
  if (what == Alone::no) return false;
  forget_polled();
  if (what == Alone::answer) return lanes_.front().loop->await(call_.get());
  Connection& client = connections_.front();
  return client.at_rest() ? client.wait_for_request() : client.answer_and_wait(*call_);
}

/// The results of poll() wait, too.
void Worker::forget_polled() {
  polled_[0].revents = 0;
  for (Lane& lane : lanes_) lane.count = 0;
}

void Worker::wait() {
  polled_.clear();
  polled_.push_back({posted_.descriptor(), POLLIN, 0});
  bool more = false;
  std::size_t under_way = 0;
  for (Lane& lane : lanes_) {
    lane.first = polled_.size();
    under_way += lane.loop->watch(polled_);
    lane.count = polled_.size() - lane.first;
    more = more || lane.more;
  }
  first_socket_ = polled_.size();
  bool ending = stopping_;
  for (const Connection& connection : connections_) {
    // The socket of a client that has left stays readable for ever.
    polled_.push_back({connection.left() ? -1 : connection.socket(), connection.events(), 0});
    more = more || connection.more();
    ending = ending || connection.left();
  }
  if (!resting_.empty()) polled_.push_back({doze_.get(), POLLIN, 0});
  const std::size_t moved = std::exchange(moved_, 0);
  if (!more && under_way > 1 && moved < under_way / 2) let_others_run();
  const int timeout = ending ? give_up_the_late() : -1;
  ::poll(polled_.data(), polled_.size(), more ? 0 : timeout);
}

/// Little came of many: yielding first finds more at once, decision 23.
void Worker::let_others_run() {
  const auto began = std::chrono::steady_clock::now();
  if (began < no_yield_before_) return;
  sched_yield();
  const auto ended = std::chrono::steady_clock::now();
  if (ended - began > kLongYield) no_yield_before_ = ended + kNoYield;
}

/// Returns the milliseconds until a client may be late again.
int Worker::give_up_the_late() {
  const auto now = std::chrono::steady_clock::now();
  auto next = stopping_ ? deadline_ : std::chrono::steady_clock::time_point::max();
  for (Connection& connection : connections_) {
    auto due = stopping_ ? deadline_ : std::chrono::steady_clock::time_point::max();
    if (connection.left()) due = std::min(due, connection.given_up_at());
    if (due <= now) {
      connection.give_up();
    } else {
      next = std::min(next, due);
    }
  }
  if (next > now + kMostWait) return static_cast<int>(kMostWait.count());
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(next - now);
  return static_cast<int>(std::max<std::int64_t>(left.count(), 10));
}

void Worker::serve_sockets() {
  std::size_t index = first_socket_;
  const bool many = connections_.size() > kFewClients && !stopping_;
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    const auto here = connection++;
    const short revents = polled_[index++].revents;
    const bool quiet = many && revents == 0 && here->at_rest() && !here->releasing();
    if (here->count_quiet(quiet) > kQuietTurns && lay_to_rest(here)) continue;
    if (revents != 0 || here->more()) here->on_socket(revents);
  }
  if (index < polled_.size() && polled_[index].revents != 0) wake_ready();
}

/// False: it goes on as before.
bool Worker::lay_to_rest(std::list<Connection>::iterator connection) {
  epoll_event event{.events = EPOLLIN, .data = {.ptr = &*connection}};
  if (::epoll_ctl(doze_.get(), EPOLL_CTL_ADD, connection->socket(), &event) < 0) return false;
  places_[&*connection] = connection;
  resting_.splice(resting_.end(), connections_, connection);
  return true;
}

void Worker::wake(const Connection& connection) {
  ::epoll_ctl(doze_.get(), EPOLL_CTL_DEL, connection.socket(), nullptr);
  const auto place = places_.extract(&connection).mapped();
  place->count_quiet(false);
  connections_.splice(connections_.end(), resting_, place);
}

void Worker::wake_ready() {
  std::array<epoll_event, 64> ready;
  const int count = ::epoll_wait(doze_.get(), ready.data(), static_cast<int>(ready.size()), 0);
  for (int i = 0; i < count; ++i) {
    auto& connection = *static_cast<Connection*>(ready[static_cast<std::size_t>(i)].data.ptr);
    wake(connection);
    // The bits of both system calls are the same.
    connection.on_socket(static_cast<short>(ready[static_cast<std::size_t>(i)].events));
  }
}

void Worker::start(Request& request) {
  request.connection->lane().start(request.job);
  lane_of(*request.connection).started = true;
  started_ = true;
  ++moved_;
}

void Worker::claim(Request& request) {
  Lane& lane = lane_of(*request.connection);
  lane.unclaimed.push_back(&request);
  start_claims(lane);
}

void Worker::forget_claim(Request& request) {
  std::erase(lane_of(*request.connection).unclaimed, &request);
}

void Worker::claim_ended(const Connection& connection) {
  Lane& lane = lane_of(connection);
  --lane.claims;
  start_claims(lane);
}

/// A quarter of the permits: the server may let CLAIMs wait for its own disk, and other requests
/// must not.
unsigned Worker::most_claims(const Lane& lane) {
  constexpr unsigned kEnough = 32;
  return std::min(lane.loop->permits() / 4, kEnough);
}

void Worker::start_claims(Lane& lane) {
  while (!lane.unclaimed.empty() && lane.claims < most_claims(lane)) {
    Request& request = *lane.unclaimed.front();
    lane.unclaimed.pop_front();
    ++lane.claims;
    request.connection->start_claim(request);
  }
}

void Worker::claim_again(Request& request) {
  posted_.post([&request] { request.connection->claim_again(request); });
}

void Worker::flush_lanes() {
  if (started_ && call_ && alone() == Alone::answer) return;  // which leaves with that wait
  for (Lane& lane : lanes_) {
    if (std::exchange(lane.started, false)) lane.loop->flush();
  }
}

void Worker::serve_lanes() {
  for (Lane& lane : lanes_) {
    const std::span polled{polled_.data() + lane.first, lane.count};
    const bool ready =
        std::any_of(polled.begin(), polled.end(), [](const pollfd& p) { return p.revents != 0; });
    if (ready || lane.more) lane.more = lane.loop->progress(polled);
  }
  take_ended();
}

/// False: nothing has ended.
bool Worker::take_ended() {
  const std::size_t moved = moved_;
  for (Lane& lane : lanes_) {
    for (rtrs::LaneLoop::Job* job = lane.loop->collect(); job != nullptr;) {
      auto& request = *static_cast<Request*>(job->context);
      job = job->next;
      request.connection->on_lane(request);
      answered_ = true;
      ++moved_;
    }
  }
  return moved_ != moved;
}

void Worker::run_posted() {
  std::vector<std::function<void()>> posted;
  posted_.take(posted);
  for (const auto& function : posted) function();
}

/// Replies make room for requests that have arrived already. Some of these end at once, which no
/// descriptor reports, so it repeats.
void Worker::send_replies() {
  do {
    const bool kept = answered_ && call_ && alone() == Alone::request;
    for (Connection& connection : connections_) {
      if (!kept) connection.send();
    }
    flush_lanes();
  } while (take_ended());
}

// ---- Clients that come and go -------------------------------------------------------------------

Worker::Lane& Worker::lane_of(const std::shared_ptr<LaneSource>& source) {
  for (Lane& lane : lanes_) {
    if (lane.source == source) return lane;
  }
  Lane& lane = lanes_.emplace_back();
  lane.source = source;
  lane.loop = source->take_lane(index_);
  return lane;
}

Worker::Lane& Worker::lane_of(const Connection& connection) {
  return *std::ranges::find_if(
      lanes_, [&](const Lane& lane) { return lane.loop.get() == &connection.lane(); });
}

void Worker::add(int socket, Agreement agreement) {
  Lane& lane = lane_of(agreement.device->lane_source());
  ++lane.users;
  connections_.emplace_back(*this, socket, std::move(agreement), *lane.loop, log_);
  if (!connections_.back().begin_with_unread()) connections_.back().hang_up();
  if (stopping_) connections_.back().drain();
}

void Worker::bury() {
  for (auto connection = connections_.begin(); connection != connections_.end();) {
    if (!connection->finished()) {
      ++connection;
      continue;
    }
    const auto releasing = releasing_.extract(&*connection);
    auto released = releasing ? connection->release() : std::nullopt;
    const auto lane = std::ranges::find_if(
        lanes_, [&](const Lane& each) { return each.loop.get() == &connection->lane(); });
    // Closing may wait for the server, and so may the end of a session.
    auto lease = std::make_shared<Lease>(connection->take_lease());
    connection = connections_.erase(connection);
    std::shared_ptr<LaneSource> source = lane->source;
    if (--lane->users == 0) lanes_.erase(lane);
    pool_.calls.post([lease = std::move(lease), source = std::move(source)] {});
    --count_;
    // The receiver may then wait for the end of the device, too.
    if (releasing) releasing.mapped().set_value(std::move(released));
  }
}

}  // namespace rnbd::nbd
