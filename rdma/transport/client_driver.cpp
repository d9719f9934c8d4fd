#include "rdma/transport/client_driver.hpp"

#include <pthread.h>
#include <sched.h>

#include <algorithm>
#include <boost/asio/co_spawn.hpp>
#include <boost/asio/post.hpp>
#include <boost/system/system_error.hpp>
#include <cerrno>
#include <cstring>
#include <exception>
#include <random>
#include <system_error>
#include <utility>

#include "rdma/transport/factory.hpp"

namespace rtrs {
namespace {

namespace asio = boost::asio;
constexpr auto kSlice = std::chrono::milliseconds{250};
constexpr unsigned kMaxDefaultLanes = 4;

wire::Uuid random_uuid() {
  std::random_device random;
  wire::Uuid uuid;
  for (auto& byte : uuid) byte = static_cast<std::uint8_t>(random());
  uuid[6] = static_cast<std::uint8_t>((uuid[6] & 0x0F) | 0x40);  // version 4
  uuid[8] = static_cast<std::uint8_t>((uuid[8] & 0x3F) | 0x80);
  return uuid;
}

Instant now() { return Instant{std::chrono::steady_clock::now().time_since_epoch()}; }

/// One thread tells another that something is done.
class Wait {
 public:
  void tell() {
    const std::lock_guard lock{mutex_};
    told_ = true;
    changed_.notify_all();
  }
  bool told_within(Duration time) {
    std::unique_lock lock{mutex_};
    return changed_.wait_for(lock, time, [this] { return told_; });
  }

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  bool told_ = false;
};

ClientOptions with_defaults(ClientOptions options) {
  if (options.lanes == 0) {
    options.lanes = std::clamp(std::thread::hardware_concurrency(), 1U, kMaxDefaultLanes);
  }
  return options;
}

ClientPathOptions path_options(const ClientOptions& options) {
  ClientPathOptions path;
  path.session_name = options.session_name;
  path.session_uuid = random_uuid();
  path.path_uuid = random_uuid();
  path.io_connections = static_cast<std::uint16_t>(options.lanes);
  path.features = options.features;
  path.heartbeat_interval = options.heartbeat_interval;
  path.heartbeat_misses = options.heartbeat_misses;
  path.may_be_linux = options.paths[0].transport == TransportKind::rdma;
  path.data_rides_with_reply = !path.may_be_linux;
  return path;
}

/// What the system refused while a session was set up: descriptors, threads, memory.
Failure failure_of(const std::exception& exception) {
  int error = ENOMEM;
  if (const auto* e = dynamic_cast<const std::system_error*>(&exception)) error = e->code().value();
  if (const auto* e = dynamic_cast<const boost::system::system_error*>(&exception)) {
    error = e->code().value();
  }
  std::string text = std::string{"cannot set up a session: "} + exception.what();
  if (error == EMFILE) text += " (raise the limit of open files, see 'ulimit -n')";
  return {error, std::move(text)};
}

tl::expected<void, Failure> check(const ClientOptions& options) {
  const auto invalid = [](std::string text) { return tl::unexpected(Failure{EINVAL, text}); };
  if (!wire::is_valid_session_name(options.session_name)) {
    return invalid("session name '" + options.session_name +
                   "' is not allowed: use 1 to 254 printable characters without '/' and '.'");
  }
  if (options.paths.size() != 1) return invalid("give exactly one path to the server");
  if (options.lanes >= wire::kMaxConnections) return invalid("too many lanes: use fewer than 4096");
  if (options.heartbeat_interval <= Duration::zero()) {
    return invalid("the heartbeat interval must be longer than zero");
  }
  return {};
}

}  // namespace

tl::expected<std::unique_ptr<Client>, Failure> Client::connect(ClientOptions options,
                                                               const Interrupt& interrupt) {
  options = with_defaults(std::move(options));
  if (auto ok = check(options); !ok) return tl::unexpected(ok.error());
  try {
    auto driver = std::make_unique<ClientDriver>(std::move(options));
    if (auto up = driver->establish(interrupt); !up) return tl::unexpected(up.error());
    return driver;
  } catch (const std::exception& exception) {
    return tl::unexpected(failure_of(exception));
  }
}

ClientDriver::ClientDriver(ClientOptions options)
    : options_{std::move(options)},
      server_{options_.paths[0].host + ':' + std::to_string(options_.paths[0].port)},
      path_{path_options(options_)},
      work_{io_.get_executor()},
      deadline_{io_},
      heartbeat_timer_{io_},
      control_descriptor_{io_} {}

ClientDriver::~ClientDriver() {
  if (!thread_.joinable()) return;
  asio::post(io_, [this] {
    fail_on_io({ESHUTDOWN, "the session was closed"});
    io_.stop();  // also when a name is still being resolved or a connection being made
  });
  thread_.join();
}

std::string ClientDriver::failure() const {
  const std::lock_guard lock{mutex_};
  return failure_.text;
}

void ClientDriver::log(LogLevel level, const std::string& text) const {
  if (options_.log) options_.log(level, text);
}

tl::expected<void, Failure> ClientDriver::establish(const Interrupt& interrupt) {
  thread_ = std::thread{[this] {
    pthread_setname_np(pthread_self(), "rtrs-client");
    asio::co_spawn(io_, connect_on_io(), [](std::exception_ptr exception) {
      if (exception) std::rethrow_exception(exception);
    });
    while (!io_.stopped()) {
      // Nothing may escape: this thread lives in somebody else's program.
      try {
        io_.run();
      } catch (const std::exception& exception) {
        fail_on_io(failure_of(exception));
      }
    }
  }};
  std::unique_lock lock{mutex_};
  while (!changed_.wait_for(lock, kSlice, [this] { return settled_; })) {
    lock.unlock();
    if (interrupt()) return tl::unexpected(Failure{EINTR, "interrupted while connecting"});
    lock.lock();
  }
  if (!alive()) return tl::unexpected(failure_);
  return {};
}

// ---- Connecting --------------------------------------------------------------------------------

asio::awaitable<void> ClientDriver::connect_on_io() {
  deadline_.expires_after(options_.connect_timeout);
  deadline_.async_wait([this](boost::system::error_code cancelled) {
    if (cancelled || alive()) return;
    fail_on_io({ETIMEDOUT, "timed out while connecting to " + server_ +
                               " (is the address right, does a firewall drop packets, does the "
                               "server hang?)"});
  });
  auto result = co_await connect_all_on_io();
  if (closed_) co_return;  // timed out or shut down meanwhile
  if (!result) {
    fail_on_io(result.error());
    co_return;
  }
  control_ = std::move(connections_[0]);
  control_descriptor_.assign(control_->descriptor());
  path_.start_exchange(*control_);
  wait_for_control_on_io();
}

asio::awaitable<tl::expected<void, Failure>> ClientDriver::connect_all_on_io() {
  const ConnectOptions options{options_.paths[0], options_.header_digest, options_.data_digest};
  for (std::uint16_t cid = 0; cid < path_.connection_count(); ++cid) {
    auto opened = co_await open_connection(options, path_.connect_request(cid),
                                           path_.queue_sizes(cid), context_);
    if (closed_) co_return tl::unexpected(Failure{ECANCELED, "given up"});
    if (!opened) co_return tl::unexpected(opened.error());
    if (const Complaint complaint = path_.on_answer(cid, opened->record)) {
      co_return tl::unexpected(refusal_on_io(complaint));
    }
    connections_.push_back(std::move(opened->connection));
  }
  const auto slots = path_.slots_per_lane();
  for (std::uint16_t cid = 0; cid < path_.connection_count(); ++cid) {
    auto ready = connections_[cid]->reserve_windows(slots[cid], path_.accepted().max_io_size);
    if (!ready) co_return tl::unexpected(ready.error());
  }
  co_return tl::expected<void, Failure>{};
}

Failure ClientDriver::refusal_on_io(Complaint complaint) const {
  const int error = path_.refusal();
  if (error == 0) return {EPROTO, server_ + ": " + complaint};
  std::string text = "the server " + server_ + " refused the session: " + std::strerror(error);
  switch (error) {
    case ENOMEM:
      text +=
          " (it has too many sessions or no memory for more: try again later, or raise its "
          "limits)";
      break;
    case EINVAL:
      text += " (probably more connections than it allows: use fewer lanes)";
      break;
    default:
      break;
  }
  return {error, std::move(text)};
}

// ---- Connection 0 ------------------------------------------------------------------------------

void ClientDriver::wait_for_control_on_io() {
  control_descriptor_.async_wait(asio::posix::stream_descriptor::wait_read,
                                 [this](boost::system::error_code error) {
                                   if (!error && !closed_) progress_control_on_io();
                                 });
}

void ClientDriver::progress_control_on_io() {
  using Status = Connection::Status;
  const Status status = control_->progress(path_);
  // What comes right behind the info response finds the lane attached only on the next progress();
  // nothing does: the server speaks first only by heartbeats.
  if (path_.state() == ClientPathState::connected && control_lane_ == nullptr) up_on_io();
  if (status == Status::broken || status == Status::closed) {
    std::string text = server_ + ": " + control_->failure();
    if (path_.state() != ClientPathState::connected) {
      text += " (session name '" + options_.session_name + "' may be in use at the server)";
    }
    fail_on_io({EIO, std::move(text)});
    return;
  }
  flush_control_on_io();
  if (status == Status::more) {
    asio::post(io_, [this] {
      if (!closed_) progress_control_on_io();
    });
  } else {
    wait_for_control_on_io();
  }
}

void ClientDriver::flush_control_on_io() {
  control_->flush();
  if (!control_->wants_to_write() || control_writing_) return;
  control_writing_ = true;
  control_descriptor_.async_wait(asio::posix::stream_descriptor::wait_write,
                                 [this](boost::system::error_code error) {
                                   control_writing_ = false;
                                   if (!error && !closed_) flush_control_on_io();
                                 });
}

void ClientDriver::up_on_io() {
  const auto slots = path_.slots_per_lane();
  control_lane_ = std::make_unique<ClientLane>(0, slots[0]);
  path_.set_control_lane(control_lane_.get());
  path_.attach(*control_lane_, 0, *control_);
  std::uint16_t first = slots[0];
  for (std::uint16_t cid = 1; cid < slots.size(); ++cid) {
    if (slots[cid] == 0) break;
    auto lane = std::make_unique<LaneDriver>(
        first, slots[cid], std::move(connections_[cid]), [this](std::string why) {
          asio::post(io_, [this, why] { fail_on_io({EIO, server_ + ": " + why}); });
        });
    lane->attach(
        [&](ClientLane& core, QueuePair& queue_pair) { path_.attach(core, cid, queue_pair); });
    lanes_.push_back(std::move(lane));
    first = static_cast<std::uint16_t>(first + slots[cid]);
  }
  deadline_.cancel();
  const auto& accepted = path_.accepted();
  limits_ = {accepted.max_io_size, accepted.queue_depth, accepted.extension.features};
  path_.start_heartbeat(now());
  schedule_tick_on_io();
  log(LogLevel::info, "session '" + options_.session_name + "' with " + server_ +
                          " is up: " + std::to_string(accepted.queue_depth) + " requests of " +
                          std::to_string(accepted.max_io_size) + " bytes, " +
                          std::to_string(lanes_.size()) + " lanes");
  const std::lock_guard lock{mutex_};
  alive_.store(true, std::memory_order_release);
  settled_ = true;
  changed_.notify_all();
}

// ---- While up ----------------------------------------------------------------------------------

void ClientDriver::schedule_tick_on_io() {
  heartbeat_timer_.expires_after(path_.next_deadline() - now());
  heartbeat_timer_.async_wait([this](boost::system::error_code error) {
    if (!error && !closed_) tick_on_io();
  });
}

void ClientDriver::tick_on_io() {
  bool traffic = false;
  for (auto& lane : lanes_) traffic |= lane->service();
  if (path_.on_tick(now(), traffic) == Heartbeat::Verdict::dead) {
    fail_on_io({EIO, server_ + " does not answer heartbeats"});
    return;
  }
  flush_control_on_io();
  schedule_tick_on_io();
}

void ClientDriver::fail_on_io(Failure failure) {
  if (std::exchange(closed_, true)) return;
  {
    const std::lock_guard lock{mutex_};
    if (alive() && failure.error != ESHUTDOWN) {
      log(LogLevel::warning, "session '" + options_.session_name + "' lost: " + failure.text);
    }
    failure_ = std::move(failure);
    alive_.store(false, std::memory_order_release);
    settled_ = true;
  }
  close_on_io();
  changed_.notify_all();
}

void ClientDriver::close_on_io() {
  path_.close();
  deadline_.cancel();
  heartbeat_timer_.cancel();
  context_.reset();  // the last connection takes the path's domain with it
  for (auto& lane : lanes_) lane->shut_down(EIO);
  if (control_lane_) control_lane_->detach(EIO);
  if (control_descriptor_.is_open()) control_descriptor_.release();
  if (control_) control_->close();
  connections_.clear();
}

// ---- Operations --------------------------------------------------------------------------------

int ClientDriver::run(Operation& operation, const Interrupt& interrupt) {
  const int cpu = sched_getcpu();
  return lanes_[static_cast<std::size_t>(std::max(cpu, 0)) % lanes_.size()]->run(operation,
                                                                                 interrupt);
}

int ClientDriver::run_control(Operation& operation, const Interrupt& interrupt) {
  if (control_lane_->slot_count() == 0) return run(operation, interrupt);
  Wait wait;
  operation.on_finish([](void* context) { static_cast<Wait*>(context)->tell(); }, &wait);
  asio::post(io_, [this, &operation] {
    operation.start(*control_lane_);
    if (!closed_) flush_control_on_io();
  });
  while (!wait.told_within(kSlice)) {
    if (!interrupt()) continue;
    Wait cancelled;
    asio::post(io_, [this, &operation, &cancelled] {
      if (!operation.finished()) operation.cancel(*control_lane_);
      cancelled.tell();
    });
    while (!cancelled.told_within(kSlice)) {
    }
    return operation.finished() ? operation.error() : EINTR;
  }
  return operation.error();
}

}  // namespace rtrs
