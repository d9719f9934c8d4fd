// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/brick/memory_paths.hpp"

#include <cerrno>

#include "bridge/server/services.hpp"
#include "rdma/server.hpp"

namespace rnbd {

/// Outlives its path: a brick may ask for the end of keys that are dead already.
class MemoryPaths::Exposure final : public brick::BrickExposure,
                                    public std::enable_shared_from_this<Exposure> {
 public:
  Exposure(const Services& services, rtrs::ServerSession& session, const rtrs::wire::Uuid& path,
           rtrs::Regions& regions)
      : services_{services}, session_{session}, path_{path}, regions_{&regions} {}

  /// Threads: the reactor.
  void close() { regions_ = nullptr; }

  void expose(std::span<std::byte> memory, std::uint32_t rights,
              std::function<void(int, std::uint32_t, std::uint64_t)> done) override {
    services_.later(reactor_, [self = shared_from_this(), memory, rights, done = std::move(done)] {
      self->expose_now(memory, rights, done);
    });
  }
  void retire(std::uint32_t key, std::uint64_t address, std::function<void()> done) override {
    services_.later(reactor_, [self = shared_from_this(), key, address, done = std::move(done)] {
      if (self->regions_ == nullptr) return done();
      self->regions_->retire({address, key}, done);
    });
  }
  void end() override {
    services_.later(reactor_, [self = shared_from_this()] {
      if (self->regions_ != nullptr) rtrs::revoke_memory_path(self->session_, self->path_);
    });
  }

 private:
  static_assert(static_cast<std::uint32_t>(brick::kRead) == rtrs::kRegionRead &&
                static_cast<std::uint32_t>(brick::kWrite) == rtrs::kRegionWrite);

  void expose_now(std::span<std::byte> memory, std::uint32_t rights,
                  const std::function<void(int, std::uint32_t, std::uint64_t)>& done) const {
    if (regions_ == nullptr) return done(EIO, 0, 0);
    const auto where = regions_->expose(memory, rights & (brick::kRead | brick::kWrite));
    if (!where) return done(where.error(), 0, 0);
    done(0, where->key, where->address);
  }

  const Services& services_;
  rtrs::ServerSession& session_;  ///< gone when regions_ is null
  rtrs::Reactor* const reactor_ = rtrs::reactor_of(session_);
  const rtrs::wire::Uuid path_;
  rtrs::Regions* regions_;  ///< null: the path has ended; the reactor's
};

void MemoryPaths::up(rtrs::ServerSession& session, const rtrs::wire::Uuid& path,
                     rtrs::Regions& regions, const Services& services) {
  auto exposure = std::make_shared<Exposure>(services, session, path, regions);
  const std::lock_guard lock{mutex_};
  paths_[{&session, path}] = std::move(exposure);
}

void MemoryPaths::down(rtrs::ServerSession& session, const rtrs::wire::Uuid& path) {
  std::shared_ptr<Exposure> gone;
  {
    const std::lock_guard lock{mutex_};
    auto node = paths_.extract(Key{&session, path});
    if (!node.empty()) gone = std::move(node.mapped());
  }
  if (gone != nullptr) gone->close();
}

std::shared_ptr<brick::BrickExposure> MemoryPaths::find(rtrs::ServerSession* session,
                                                        const rtrs::wire::Uuid& path) const {
  const std::lock_guard lock{mutex_};
  const auto found = paths_.find({session, path});
  return found == paths_.end() ? nullptr : found->second;
}

}  // namespace rnbd
