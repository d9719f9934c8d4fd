// SPDX-License-Identifier: BSD-3-Clause
// The attacked server as others see it: its log, and an honest session that is open all the time.
#pragma once

#include <memory>
#include <string>
#include <vector>

#include "bridge/client/remote_device.hpp"

namespace rtrs::hostile {

/// The server of RNBD_TARGET, which writes its log to the file RNBD_SERVER_LOG and exports `disk0`.
class Victim {
 public:
  /// The only one; connects when it is asked for first.
  static Victim& get();
  ~Victim();

  /// After an attack: the log has new complaints, at most so many, and one has `text` in it; the
  /// honest session reads and writes.
  void complains(const std::string& text, std::size_t most = 1);
  /// The same after `count` attacks at once: one complaint for each, with `text` in it.
  void complains_of_each(std::size_t count, const std::string& text);
  /// Nothing was worth a complaint; the honest session reads and writes. The log says `text`, if
  /// any.
  void is_content(const std::string& text = {});
  /// The honest session reads and writes.
  void check_honest();
  /// Drops all that was logged so far.
  void forget_log();

 private:
  Victim();
  std::vector<std::string> new_lines();
  std::size_t wait_for(const std::string& text, std::size_t times = 1);

  std::string log_;
  std::size_t seen_ = 0;  ///< bytes of the log
  std::vector<std::string> lines_;
  std::shared_ptr<rnbd::Session> session_;
  std::unique_ptr<rnbd::RemoteDevice> device_;
  std::uint32_t round_ = 0;
};

/// An honest session with the target.
std::shared_ptr<rnbd::Session> honest_session(const std::string& name);

}  // namespace rtrs::hostile
