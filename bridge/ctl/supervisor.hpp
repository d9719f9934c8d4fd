// SPDX-License-Identifier: BSD-3-Clause
// Starts and stops the bridge of a mapping, by systemd, or without it where there is none.
#pragma once

#include <memory>
#include <string>

#include "bridge/ctl/mapping.hpp"

namespace rnbd {

/// The sentence in a bridge's log that says why it has ended; "": none does. Pure.
std::string reason_in_log(const std::string& log);

/// Texts are "" or what is wrong. A bridge is called by the name of its mapping, or by its key when
/// mappings share it.
class Supervisor {
 public:
  virtual ~Supervisor() = default;

  /// Returns when the device is there, or when a bridge that is shared runs.
  virtual std::string start(const Mapping& mapping) = 0;
  /// The mapping comes from the next boot on, too.
  virtual std::string enable(const std::string& name) = 0;
  /// Returns when nothing runs any more. With `force` a bridge that hangs is killed.
  virtual std::string stop(const std::string& name, bool force) = 0;
  /// Ends at once a bridge that hangs, and nobody starts it again, unless it is shared: that one
  /// may come again by itself. stop() waits for the end.
  virtual void kill(const std::string& name) = 0;
  virtual std::string disable(const std::string& name) = 0;
  virtual bool runs(const std::string& name) const = 0;
  /// The unit that runs it, or would.
  static std::string unit_of(const std::string& name);
  /// The place where the bridge says what troubles it, for people.
  virtual std::string log_of(const std::string& name) const = 0;
  /// Removes what a bridge has left that has ended for good.
  virtual void forget(const std::string& name) = 0;
};

/// systemd if it has booted this machine. `bridge` is what to start where it has not; "":
/// rnbd-bridge beside this program.
std::unique_ptr<Supervisor> choose_supervisor(const std::string& root, const std::string& bridge);

}  // namespace rnbd
