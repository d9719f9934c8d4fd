// SPDX-License-Identifier: BSD-3-Clause
// A session of the library's user, which several handles of a disk share.
#pragma once

#include <memory>
#include <mutex>
#include <tl/expected.hpp>
#include <vector>

#include "bridge/client/config.hpp"
#include "bridge/client/connections.hpp"
#include "bridge/control/control_socket.hpp"
#include "bridge/librnbd/include/rnbd.h"
#include "rdma/failure.hpp"

namespace rnbd::library {

/// The settings of a caller, after all checks.
struct Settings {
  ClientConfig config;
  unsigned depth = 0;
  rtrs::Log log;
};

/// Errors: EINVAL, with the remedy.
tl::expected<Settings, Failure> read_settings(const char* uri, const rnbd_options* options);

class Place;

/// Threads: any.
class Attachment : public std::enable_shared_from_this<Attachment> {
 public:
  /// Errors: EAGAIN or EINVAL of the control socket, with the remedy. Throws std::system_error.
  static tl::expected<std::shared_ptr<Attachment>, Failure> make(Settings settings);
  ~Attachment();
  Attachment(const Attachment&) = delete;
  Attachment& operator=(const Attachment&) = delete;

  unsigned depth() const { return settings_.depth; }
  /// Opens the disk on a lane that nobody has. Errors: ENOSPC, those of Connections::open().
  tl::expected<std::unique_ptr<Place>, Failure> open();
  /// Opens the disk for a user that only asks for its size.
  tl::expected<Disk*, Failure> observe(const Interrupt& interrupt);
  void close(Disk* disk) { connections_.close(disk); }
  /// The disk is no plain device of one server.
  bool is_of_annex() { return connections_.source() != nullptr; }

 private:
  friend class Place;

  explicit Attachment(Settings settings);
  tl::expected<void, Failure> open_control();

  const Settings settings_;
  Connections connections_;
  std::unique_ptr<ControlCommands> commands_;
  std::unique_ptr<ControlSocket> control_;
  std::mutex mutex_;
  std::vector<bool> used_;  ///< lanes; guarded by mutex_
};

/// A disk of the attachment, and the lane that its user has, until both are given back.
///
/// Threads: its user's.
class Place {
 public:
  ~Place();
  Place(const Place&) = delete;
  Place& operator=(const Place&) = delete;

  Attachment& attachment() { return *attachment_; }
  Disk& disk() { return disk_; }
  rtrs::LaneLoop& lane() { return *loop_; }

 private:
  friend class Attachment;
  Place(std::shared_ptr<Attachment> attachment, Disk& disk, unsigned lane);

  const std::shared_ptr<Attachment> attachment_;
  Disk& disk_;
  const unsigned lane_;
  std::shared_ptr<LaneSource> source_;
  std::unique_ptr<rtrs::LaneLoop> loop_;
};

}  // namespace rnbd::library
