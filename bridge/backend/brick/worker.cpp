// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/backend/brick/worker.hpp"

#include <sys/random.h>

#include <bit>
#include <boost/asio/post.hpp>
#include <cerrno>
#include <chrono>
#include <cstring>
#include <future>

namespace rnbd::brick {
namespace {

/// They mostly wait for the disk.
constexpr std::size_t kDiskThreads = 4;
constexpr std::chrono::milliseconds kLeaseLook{50};

std::uint64_t now_in_ms() {
  const auto now = std::chrono::steady_clock::now().time_since_epoch();
  return static_cast<std::uint64_t>(
      std::chrono::duration_cast<std::chrono::milliseconds>(now).count());
}

}  // namespace

BrickWorker::BrickWorker(const BrickOptions& options, BrickFiles files, rtrs::Log log)
    : options_{options}, files_{std::move(files)}, log_{std::move(log)}, disk_{kDiskThreads} {
  if (files_.journal != nullptr) epoch_ = files_.journal->last_epoch();
  while (epoch_ == 0)
    if (getrandom(&epoch_, sizeof(epoch_), 0) < 0) epoch_ = now_in_ms();
  if (files_.journal != nullptr)
    uuid_ = files_.journal->uuid();
  else if (getrandom(uuid_.data(), uuid_.size(), 0) < 0)
    uuid_.fill(0);
  const auto kept = files_.journal != nullptr ? files_.journal->kept() : std::vector<Kept>{};
  brick_.emplace(options_, kept, *this);
  thread_ = std::thread{[this] { io_.run(); }};
}

BrickWorker::~BrickWorker() {
  std::promise<int> flushed;
  run([&](Brick& brick) {
    const Ticket ticket = ask([&](const Reply& reply) { flushed.set_value(reply.error); });
    has_tier() ? brick.flush(ticket) : answer(ticket, {});
  });
  const int error = flushed.get_future().get();
  disk_.join();
  guard_.reset();
  io_.stop();
  thread_.join();
  // No data are lost, so clients keep the epoch.
  if (error == 0 && files_.journal != nullptr) files_.journal->end(epoch_);
}

void BrickWorker::run(std::function<void(Brick&)> work) {
  boost::asio::post(io_, [this, work = std::move(work)] { work(*brick_); });
}

Ticket BrickWorker::ask(std::function<void(const Reply&)> then) {
  tickets_.emplace(next_ticket_, std::move(then));
  return next_ticket_++;
}

void BrickWorker::answer(Ticket ticket, const Reply& reply) {
  const auto found = tickets_.find(ticket);
  if (found == tickets_.end()) return;
  const auto then = std::move(found->second);
  tickets_.erase(found);
  then(reply);
}

void BrickWorker::record(const std::vector<Record>& records) {
  if (files_.journal == nullptr) return run([](Brick& brick) { brick.recorded(0); });
  boost::asio::post(disk_, [this, records] {
    const int error = files_.journal->append(records);
    if (error != 0 && log_)
      log_(rtrs::LogLevel::error, std::string{"the journal of a brick cannot be written, and "
                                              "nothing is allocated any more: "} +
                                      std::strerror(error));
    run([error](Brick& brick) { brick.recorded(error); });
  });
}

int BrickWorker::write_part(const StoreJob& job, std::uint64_t offset, std::uint64_t length) {
  return files_.tier->write(job.place * kBlockSize + offset,
                            {memory().at(job.slot) + offset, length});
}

int BrickWorker::write_grains(const StoreJob& job, std::uint32_t grains) {
  while (grains != 0) {
    const auto first = static_cast<unsigned>(std::countr_zero(grains));
    const auto count = static_cast<unsigned>(std::countr_one(grains >> first));
    const int error = write_part(job, std::uint64_t{first} * BrickMemory::kGrain,
                                 std::uint64_t{count} * BrickMemory::kGrain);
    if (error != 0) return error;
    grains &= first + count == 32 ? 0U : ~0U << (first + count);
  }
  return 0;
}

int BrickWorker::write_job(const StoreJob& job, std::uint32_t grains) {
  int error = 0;
  if (job.keep == Keep::whole) error = write_part(job, 0, kBlockSize);
  if (job.keep == Keep::span) error = write_part(job, job.span.offset, job.span.length);
  if (job.keep == Keep::dirty) error = write_grains(job, grains);
  return error != 0 ? error : files_.tier->sync();
}

void BrickWorker::store(const StoreJob& job) {
  const std::uint32_t grains = job.keep == Keep::span ? 0 : memory().take_dirty(job.slot);
  boost::asio::post(disk_, [this, job, grains] {
    const int error = write_job(job, grains);
    if (error != 0) memory().mark_grains(job.slot, grains);
    if (error != 0 && log_)
      log_(rtrs::LogLevel::error,
           std::string{"the tier of a brick cannot be written: "} + std::strerror(error));
    run([id = job.job, error](Brick& brick) { brick.stored(id, error); });
  });
}

void BrickWorker::load(Slot slot, Place place, std::uint64_t job) {
  boost::asio::post(disk_, [this, slot, place, job] {
    const int error = files_.tier->read(place * kBlockSize, {memory().at(slot), kBlockSize});
    memory().take_dirty(slot);
    run([job, error](Brick& brick) { brick.loaded(job, error); });
  });
}

void BrickWorker::zero(Slot slot) {
  std::memset(memory().at(slot), 0, kBlockSize);
  memory().take_dirty(slot);
}

Path BrickWorker::add_path(Session session, std::shared_ptr<BrickExposure> exposure) {
  const Path path = next_path_++;
  paths_[path] = std::move(exposure);
  brick_->path_up(session, path);
  return path;
}

void BrickWorker::remove_path(Path path) {
  paths_.erase(path);
  brick_->path_gone(path);
}

void BrickWorker::add_session(Session session, const std::string& name,
                              std::function<void()> on_recall) {
  sessions_[session] = {name, std::move(on_recall)};
}

std::map<Session, std::string> BrickWorker::users() const {
  std::map<Session, std::string> users;
  for (const auto& [session, user] : sessions_) users[session] = user.name;
  return users;
}

void BrickWorker::remove_session(Session session) {
  sessions_.erase(session);
  brick_->session_gone(session);
}

void BrickWorker::expose(const NewMap& wanted) {
  const std::uint64_t map = wanted.map;
  const auto path = paths_.find(wanted.path);
  if (path == paths_.end()) return run([map](Brick& brick) { brick.exposed(map, 0, 0, ENOTCONN); });
  keys_[map].exposure = path->second;
  const auto done = [this, map](int error, std::uint32_t key, std::uint64_t address) {
    run([this, map, error, key, address](Brick& brick) {
      Key& made = keys_[map];
      made.key = key;
      made.address = address;
      if (error != 0) keys_.erase(map);
      brick.exposed(map, key, address, error);
    });
  };
  path->second->expose({memory().at(wanted.slot), kBlockSize}, wanted.rights, done);
}

void BrickWorker::retire(std::uint64_t map) {
  const Key key = keys_.at(map);
  key.exposure->retire(key.key, key.address, [this, map] {
    run([this, map](Brick& brick) {
      keys_.erase(map);
      brick.retired(map);
    });
  });
}

void BrickWorker::recall(Session session) {
  if (const auto found = sessions_.find(session); found != sessions_.end())
    found->second.on_recall();
  if (!watching_) boost::asio::post(io_, [this] { watch_leases(); });
  watching_ = true;
}

void BrickWorker::watch_leases() {
  brick_->tick(now_in_ms());
  watching_ = brick_->recalls();
  if (!watching_) return;
  lease_timer_.expires_after(kLeaseLook);
  lease_timer_.async_wait([this](const boost::system::error_code& error) {
    if (!error) watch_leases();
  });
}

void BrickWorker::kill(Path path) {
  const auto found = paths_.find(path);
  if (found == paths_.end()) return;
  if (log_) log_(rtrs::LogLevel::warning, "a brick ends a memory path");
  found->second->end();
  paths_.erase(found);
}

}  // namespace rnbd::brick
