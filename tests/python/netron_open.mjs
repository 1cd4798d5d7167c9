// node netron_open.mjs <folder of netron> <model.onnx>: opens the model with Netron's own reader, without a window,
// and prints what it would draw, as JSON.
import * as fs from 'node:fs';
import * as path from 'node:path';
const [folder, file] = process.argv.slice(2);
const part = (name) => import(path.join(folder, name.endsWith('.js') ? name : `${name}.js`));
const base = await part('base');
const protobuf = await part('protobuf');
const onnx = await part('onnx');
const bytes = fs.readFileSync(file);
class Context {
  identifier = path.basename(file);
  get stream() { return new base.BinaryStream(new Uint8Array(bytes)); }
  async peek() { return undefined; }
  async tags(kind) { return kind === 'pb' ? protobuf.BinaryReader.open(this.stream).signature() : new Map(); }
  async read() { return protobuf.BinaryReader.open(this.stream); }
  async require(name) { return part(name); }
  async asset(name) { return fs.readFileSync(path.join(folder, name), 'utf-8'); }
  async fetch(name) { throw new Error(`no external data here, asked for ${name}`); }
  set(type, value) { this.type = type; this.value = value; return type; }
}
const context = new Context();
const factory = new onnx.ModelFactory();
if (!(await factory.match(context))) throw new Error('Netron does not recognise the file');
const model = await factory.open(context);
console.log(JSON.stringify(model.modules.map((graph) => ({
  inputs: graph.inputs.map((input) => input.name),
  outputs: graph.outputs.map((output) => output.name),
  nodes: graph.nodes.map((node) => [node.type.name, node.outputs.flatMap((o) => o.value.map((v) => v.name))]),
}))));
