// SPDX-License-Identifier: BSD-3-Clause
// The things that the parts of a session share.
#pragma once

namespace rnbd {

class ExportCatalogue;
class IoRequests;
class MessageOrder;
class OpenNumbers;
class OpenTable;
class QueueTable;
class SessionLog;
struct SessionFacts;
class Services;

/// The parts of a session that others refer to. They outlive all its requests.
///
/// Threads: the reactor of the session.
struct SessionParts {
  const SessionFacts& facts;
  OpenTable& devices;
  OpenNumbers& numbers;
  MessageOrder& order;
  ExportCatalogue& catalogue;
  QueueTable& queues;
  const Services& services;
  SessionLog& log;
  IoRequests& io;
};

}  // namespace rnbd
