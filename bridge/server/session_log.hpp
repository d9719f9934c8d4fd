// SPDX-License-Identifier: BSD-3-Clause
// The lines in the log about one client.
#pragma once

#include <string>

#include "bridge/server/services.hpp"
#include "bridge/server/session_facts.hpp"

namespace rnbd {

/// Names the session and its client in each line. `event` and `device` are for the structured log.
///
/// Threads: the reactor of the session.
class SessionLog {
 public:
  SessionLog(const SessionFacts& facts, const Services& services)
      : facts_{facts}, services_{services} {}

  void say(rtrs::LogLevel level, const char* event, const std::string& device,
           const std::string& line) const;
  /// The same for a text that names the client itself.
  void tell(rtrs::LogLevel level, const char* event, const std::string& device,
            const std::string& line, int error = 0) const;
  /// A client may try without end, so a session has a number of lines for its life. There is no
  /// rate, as LineLimit has: the next sessions of the host share that of ClientLog.
  void refusal(const std::string& device, const std::string& line,
               const char* event = "device_refused");
  /// A line for the audit of rights. It counts as a refusal. `level`: a client that may only read
  /// asks again, as clients do by default, which is worth no warning.
  void audit_refusal(const std::string& name, wire::AccessMode mode, const char* why,
                     rtrs::LogLevel level);

 private:
  /// Counts a line of a refusal. The last one says that no more follow.
  const char* end_of_refusal();

  const SessionFacts& facts_;
  const Services& services_;
  unsigned refusals_ = 0;
};

}  // namespace rnbd
