// SPDX-License-Identifier: BSD-3-Clause
#include "bridge/server/session_log.hpp"

#include "bridge/server/rights.hpp"
#include "rdma/log_about.hpp"

namespace rnbd {
namespace {

/// Lines of refused OPENs that one client may cause in the log.
constexpr unsigned kMaxRefusalLines = 20;

}  // namespace

void SessionLog::say(rtrs::LogLevel level, const char* event, const std::string& device,
                     const std::string& line) const {
  tell(level, event, device, facts_.name + " (" + facts_.peer + "): " + line);
}

void SessionLog::tell(rtrs::LogLevel level, const char* event, const std::string& device,
                      const std::string& line, int error) const {
  const rtrs::LogAbout about{{.event = event,
                              .session = facts_.name,
                              .path = facts_.peer,
                              .device = device,
                              .error = error}};
  services_.say(level, facts_.peer, line);
}

void SessionLog::refusal(const std::string& device, const std::string& line, const char* event) {
  if (refusals_ == kMaxRefusalLines) return;
  say(rtrs::LogLevel::warning, event, device, line + end_of_refusal());
}

void SessionLog::audit_refusal(const std::string& name, wire::AccessMode mode, const char* why,
                               rtrs::LogLevel level) {
  if (refusals_ == kMaxRefusalLines) return;
  tell(level, "open_refused", name,
       audit_line("open refused", {{"peer", facts_.peer},
                                   {"identity", facts_.identity},
                                   {"session", facts_.name},
                                   {"export", name},
                                   {"access", wire::to_string(mode)},
                                   {"why", why}}) +
           end_of_refusal());
}

const char* SessionLog::end_of_refusal() {
  return ++refusals_ == kMaxRefusalLines ? " (further refusals are not logged)" : "";
}

}  // namespace rnbd
