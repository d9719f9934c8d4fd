// SPDX-License-Identifier: BSD-3-Clause
// Mirrors, for a client that knows nothing of them: their options, and disks of rnbd-mirror://.
#pragma once

#include <memory>
#include <mutex>

#include "bridge/client/annex.hpp"
#include "bridge/client/mirror/mirror.hpp"

namespace rnbd::mirror {

extern const ClientAnnex kAnnex;

/// The mirror that all users of a program share.
class MirrorSource final : public DiskSource {
 public:
  MirrorSource(const ClientConfig& config, const rtrs::Log& log) : config_{config}, log_{log} {}

  tl::expected<std::unique_ptr<Disk>, Failure> open(bool readonly,
                                                    const Interrupt& interrupt) override;
  tl::expected<void, Failure> probe() override;
  SessionStatus status() override;
  void add_metrics(Exposition& page) override;
  std::string why_no_paths() const override;
  void leave() override;

  /// Its members, also before a user has opened it.
  MirrorStatus members();
  /// A new one after another client has taken over the first.
  std::shared_ptr<Mirror> usable();
  /// Null: nobody has asked for the disk yet.
  std::shared_ptr<Mirror> present();

 private:
  const ClientConfig& config_;
  const rtrs::Log log_;
  std::mutex mutex_;
  std::shared_ptr<Mirror> mirror_;  ///< guarded by mutex_
};

}  // namespace rnbd::mirror
