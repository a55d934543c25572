// nsqjs; see test_peers.py for its arguments and its task.

const fs = require('fs')
const nsq = require('nsqjs')

const [role, address, topic, features, caFile, count] = process.argv.slice(2)
const [host, port] = address.split(':')
const options = {}
if (features.includes('tls_v1')) {
  options.tls = true
  options.ca = fs.readFileSync(caFile)
}
if (features.includes('snappy')) options.snappy = true
if (features.includes('deflate')) options.deflate = true

function fail(error) {
  console.error(error)
  process.exit(1)
}

if (role === 'publish') {
  const writer = new nsq.Writer(host, Number(port), options)
  writer.on('error', fail)
  writer.on('ready', () => {
    let left = Number(count)
    for (let number = 0; number < count; number++) {
      writer.publish(topic, String(number), (error) => {
        if (error) fail(error)
        if (--left === 0) {
          console.log('published')
          writer.close()
        }
      })
    }
  })
  writer.connect()
} else {
  const reader = new nsq.Reader(topic, 'channel', { nsqdTCPAddresses: [address], maxInFlight: 10, ...options })
  reader.on('error', fail)
  reader.on('message', (message) => {
    const body = message.body.toString()
    console.log(`${body} ${message.attempts}`)
    if (body === '0' && message.attempts === 1) message.requeue(0, false)
    else message.finish()
  })
  reader.connect()
}
