// SPDX-License-Identifier: BSD-3-Clause
// Runs a brick: its rules on a thread of their own, and its files on others. The connections hold
// the keys of clients.
#pragma once

#include <array>
#include <atomic>
#include <boost/asio/executor_work_guard.hpp>
#include <boost/asio/io_context.hpp>
#include <boost/asio/steady_timer.hpp>
#include <boost/asio/thread_pool.hpp>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "bridge/backend/brick/brick.hpp"
#include "bridge/backend/brick/journal.hpp"
#include "bridge/backend/brick/memory.hpp"
#include "bridge/backend/brick/service.hpp"
#include "rdma/log.hpp"

namespace rnbd::brick {

/// The files and sizes of a brick.
struct BrickFiles {
  std::unique_ptr<BrickMemory> memory;
  std::unique_ptr<PartFile> tier;       ///< none: memory only
  std::unique_ptr<PartFile> meta_file;  ///< with a tier
  std::unique_ptr<Journal> journal;     ///< of it
};

/// Threads: as BrickService.
class BrickWorker final : public BrickService, public BrickHost {
 public:
  BrickWorker(const BrickOptions& options, BrickFiles files, rtrs::Log log);
  /// Makes all data durable. Paths and requests are gone by now.
  ~BrickWorker() override;
  BrickWorker(const BrickWorker&) = delete;
  BrickWorker& operator=(const BrickWorker&) = delete;

  // BrickService
  void run(std::function<void(Brick&)> work) override;
  Ticket ask(std::function<void(const Reply&)> then) override;
  Path add_path(Session session, std::shared_ptr<BrickExposure> exposure) override;
  void remove_path(Path path) override;
  void add_session(Session session, const std::string& name,
                   std::function<void()> on_recall) override;
  void remove_session(Session session) override;
  std::map<Session, std::string> users() const override;
  BrickMemory& memory() override { return *files_.memory; }
  const BrickOptions& options() const override { return options_; }
  bool has_tier() const override { return files_.tier != nullptr; }
  std::uint64_t epoch() const override { return epoch_; }
  const std::array<std::uint8_t, 16>& uuid() const override { return uuid_; }
  Session new_session() override { return next_session_++; }

  // BrickHost
  void answer(Ticket ticket, const Reply& reply) override;
  void record(const std::vector<Record>& records) override;
  void store(const StoreJob& job) override;
  void load(Slot slot, Place place, std::uint64_t job) override;
  void zero(Slot slot) override;
  void open(Block block, Slot slot) override { memory().open(block, slot); }
  bool close(Block block) override { return memory().close(block); }
  bool dirty(Slot slot) const override { return files_.memory->dirty(slot); }
  void expose(const NewMap& wanted) override;
  void retire(std::uint64_t map) override;
  void recall(Session session) override;
  void kill(Path path) override;

 private:
  struct Key {
    std::shared_ptr<BrickExposure> exposure;
    std::uint32_t key = 0;
    std::uint64_t address = 0;
  };
  int write_part(const StoreJob& job, std::uint64_t offset, std::uint64_t length);
  int write_grains(const StoreJob& job, std::uint32_t grains);
  int write_job(const StoreJob& job, std::uint32_t grains);
  void watch_leases();

  BrickOptions options_;
  BrickFiles files_;
  rtrs::Log log_;
  std::uint64_t epoch_ = 0;
  std::array<std::uint8_t, 16> uuid_{};
  std::atomic<Session> next_session_{1};
  std::map<Ticket, std::function<void(const Reply&)>> tickets_;
  Ticket next_ticket_ = 1;
  std::map<Path, std::shared_ptr<BrickExposure>> paths_;
  Path next_path_ = 1;
  struct User {
    std::string name;
    std::function<void()> on_recall;
  };
  std::map<Session, User> sessions_;
  std::map<std::uint64_t, Key> keys_;
  std::optional<Brick> brick_;
  boost::asio::io_context io_;
  boost::asio::steady_timer lease_timer_{io_};
  bool watching_ = false;
  boost::asio::thread_pool disk_;
  boost::asio::executor_work_guard<boost::asio::io_context::executor_type> guard_{
      io_.get_executor()};
  std::thread thread_;
};

}  // namespace rnbd::brick
